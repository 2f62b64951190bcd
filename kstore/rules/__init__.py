"""Decisions as pure functions over values: what to accept, when to roll, where recovery cuts."""
