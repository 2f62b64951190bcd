"""Everything behind ``Log``: opening, appending, reading and looking after one log."""
