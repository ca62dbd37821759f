"""Streams: consumers and groups that read one appended log, each at its own place."""
