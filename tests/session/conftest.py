"""Fixtures of the session tests."""

from tests.support.inprocess import connect, start

__all__ = ["connect", "start"]
