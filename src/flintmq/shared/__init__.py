"""Queues that several brokers share, on a key-value engine."""
