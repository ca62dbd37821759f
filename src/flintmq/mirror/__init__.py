"""The mirror of a shared queue: what its owner's queue core tells the engine, and how it comes back (docs/adr/0015)."""
