"""Consumers: read topics from stored positions, alone or as members of a group."""
