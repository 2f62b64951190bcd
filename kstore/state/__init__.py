"""A log's own state, kept in small files."""
