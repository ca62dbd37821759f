# Python face of list_kinds.py (compiled), for the type checker.
LIST_STANDARD: int
LIST_PRIORITY: int
LIST_SORTED: int
LIST_LAST_VALUE: int
LEVEL_RABBITMQ: int
LEVEL_QPID: int
