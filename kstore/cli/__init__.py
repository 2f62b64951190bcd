"""The kstore command, one file for each subcommand."""
