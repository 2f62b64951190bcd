"""What a log knows of itself, and keeps in small files."""
