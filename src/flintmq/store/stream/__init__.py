"""Streams on disk: a log of its own for each stream, hot messages in memory, cold reads, retention (docs/FORMAT.md, "Logs of streams")."""
