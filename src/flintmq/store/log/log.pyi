# Python face of log.py (compiled), for the type checker.
CONTAINER_ABSENT: int
CONTAINER_READY: int
CONTAINER_SEALED: int
