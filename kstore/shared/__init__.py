"""A log that several processes write to."""
