"""The segment indexes, one file each; ``kstore.index`` is their public module."""
