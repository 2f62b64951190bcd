"""An embedded, durable, append-only log with Apache Kafka's exact file format."""
