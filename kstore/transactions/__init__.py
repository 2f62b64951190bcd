"""What a Kafka broker does for producers and groups, in one process: ids, transactions, offsets."""
