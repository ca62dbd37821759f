# Python face of list_kinds.py (compiled), for the type checker.
LIST_STANDARD: int
LIST_PRIORITY: int
LEVEL_RABBITMQ: int
LEVEL_QPID: int
