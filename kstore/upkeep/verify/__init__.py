"""Checks a log's files against each other and against the rules: every batch, index entry, snapshot and checkpoint.

Nothing is written and no lock is taken: a log may be in use. Unlike reads, it also checks beyond the high watermark.
"""

from kstore.upkeep.verify.directory import find_logs, is_log_in, verify, verify_present, verify_store_files
from kstore.upkeep.verify.findings import Finding, LogVerification, Severity
from kstore.upkeep.verify.partition import verify_log

__all__ = [
    "Finding",
    "LogVerification",
    "Severity",
    "find_logs",
    "is_log_in",
    "verify",
    "verify_log",
    "verify_present",
    "verify_store_files",
]
