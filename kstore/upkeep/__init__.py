"""Maintenance of logs: verify, recover, explain, mirror, hand over, count."""
