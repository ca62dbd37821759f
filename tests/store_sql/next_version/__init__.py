"""A migration that exists for tests only: what a version 0002 could be."""
