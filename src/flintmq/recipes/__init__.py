"""A queue that programs share without a broker, on an engine."""
