"""Looking after logs: verify, recover, explain, mirror, hand over, count."""
