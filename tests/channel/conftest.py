"""Fixtures of the channel tests."""

from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["connect", "heap_of_others", "start"]
