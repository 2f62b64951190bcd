"""Spark's way to find the data source ``kstore``: it imports every top-level module named ``pyspark_...``."""
