"""The tests. Their compiled part (twins, drivers) may come from a copy that was built otherwise, as flintmq itself does by PYTHONPATH:
FLINTMQ_TESTS_BUILT names that copy's folder `tests` (tools/asan.sh)."""

import os

if "FLINTMQ_TESTS_BUILT" in os.environ:
    __path__.insert(0, os.environ["FLINTMQ_TESTS_BUILT"])
