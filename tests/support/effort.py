"""How much a test tries: what finds each known mistake in `make test`, and what it tried before with FLINTMQ_LONG=1 (`make crash`)."""

from __future__ import annotations

import os

LONG = os.environ.get("FLINTMQ_LONG") == "1"


def tries(quick: int, long: int) -> int:
    """`quick` of them in `make test`, `long` of them in the campaigns that take hours."""
    return long if LONG else quick
