"""Consumers: reading topics at positions that are remembered, alone or as one of a group."""
