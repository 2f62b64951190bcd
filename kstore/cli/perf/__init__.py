"""The speed of producers and consumers: ``producer-perf-test`` and ``consumer-perf-test``."""
