"""A Kafka topic as a sink, at least once: `messages` makes them of rows, `client` asks brokers, `sink` sends."""
