"""What ``kstore dump-log`` does with each kind of file."""
