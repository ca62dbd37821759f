"""Alembic's entry point: it executes this file. The caller (migrate.py) gives the connection, or only the dialect for a dry run."""

from __future__ import annotations

from alembic import context

attributes = context.config.attributes
if context.is_offline_mode():
    context.configure(dialect_name=attributes["dialect"], literal_binds=True, transactional_ddl=True, render_as_batch=True)
else:
    context.configure(connection=attributes["connection"], transactional_ddl=True, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
