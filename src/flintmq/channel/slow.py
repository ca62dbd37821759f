"""What the compiled half of a connection asks of Python: numbers that both have (slow.pxd, session/handlers.py)."""
