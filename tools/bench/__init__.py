"""The benchmarks of ``make bench``: each figure beside this machine's own limit, measured in the same run.

measure.py      how a figure and its limit are measured        logs.py     the measured logs
*_lines.py      the lines, by subject                       peers.py, comparison.py  kstore beside other stores
machine.py      what it ran on                              report.py   BENCHMARKS.md
"""
