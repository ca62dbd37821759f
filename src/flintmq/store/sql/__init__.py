"""Definitions in SQL: what survives a restart besides messages. Start reading at definitions.py; docs/STORE_SQL.md for people."""
