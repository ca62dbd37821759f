"""Canned jobs over queues and logs (docs/PIPELINE.md, "Jobs")."""
