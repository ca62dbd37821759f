# Calls of an index log as the pager makes them, for tests.
