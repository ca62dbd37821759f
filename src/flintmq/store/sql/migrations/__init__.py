"""Alembic scripts of the definitions database. Run by migrate.py, never through an alembic.ini."""
