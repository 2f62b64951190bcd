"""What the bytes mean: batches and records of every version. No I/O, clock or threads here."""
