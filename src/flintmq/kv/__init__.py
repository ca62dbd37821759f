"""Ordered transactional key-value engines behind one port."""
