# Python face of slow.py (compiled), for the type checker.
SLOW_NONE: int
SLOW_METHOD: int
SLOW_ROUTE: int
SLOW_PUBLISH: int
SLOW_DEAD_LETTER: int
SLOW_ERROR: int
SLOW_VERSION: int
SLOW_POLICY: int
SLOW_HEADER: int
SLOW_RESOLVE: int
SETTLING_MULTIPLE: int
SETTLING_REQUEUE: int
