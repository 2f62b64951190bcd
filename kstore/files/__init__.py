"""The only door to the operating system."""
