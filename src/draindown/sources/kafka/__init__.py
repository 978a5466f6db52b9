"""Kafka as a source: pinned offsets of topics, looked at without a JVM.

`client` asks the brokers, `offsets` decides what is unread, lost and in the next slice, `intake`
writes slices down.
"""
