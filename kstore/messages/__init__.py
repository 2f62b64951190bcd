"""The messages that Kafka defines by schemas: the schemas, and one reader and writer for them."""
