"""The kstore command: one file a command."""
