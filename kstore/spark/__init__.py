"""Segment directories as Spark DataFrames: the data source ``kstore``, batch and stream, reading and writing."""
