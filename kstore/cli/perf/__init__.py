"""How fast producers and consumers are: ``producer-perf-test`` and ``consumer-perf-test``."""
