"""A Kafka topic as a sink: `messages` makes them of rows, `client` asks brokers, `sink` sends at
least once.

`transactions` sends exactly once, and `markers` remembers what was sent.
"""
