"""The benchmarks behind ``make bench``: each figure beside this machine's own limit, measured in the same run."""
