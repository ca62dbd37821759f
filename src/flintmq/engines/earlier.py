"""Engines that hold shared queues as versions before docs/adr/0015 wrote them.

in: the URL of an engine. out: a refusal that says what to do.
Embedded files are not asked here: SqliteEngine refuses them itself. PostgreSQL had no such rows.
"""

from __future__ import annotations

from flintmq.config import Limits
from flintmq.engines.engine import Unfit
from flintmq.engines.opening import PREFIX, engine_url, open_engine

# Rows of that form began with b"flintmq" and the byte 1. As prefixes of today's engines, by the schemes of their URLs: the rows of an
# engine on FoundationDB begin with its prefix and the byte 1.
_PREFIXES = {"etcd": b"flintmq\x01", "etcds": b"flintmq\x01", "fdb": b"flintmq"}


async def _has_rows(named: str, limits: Limits, prefix: bytes) -> bool:
    engine = open_engine(named, limits, prefix)
    try:
        return bool(await engine.scan(b"", b"\xff", 1, 1))
    finally:
        await engine.close()


async def refuse_earlier(named: str, limits: Limits) -> None:
    """Does nothing where the engine has rows of today's form, or none of the earlier one. Args: named: its URL, or file:PATH.

    Raises: Unfit: shared queues of an earlier version are there and nothing else; Unavailable; ValueError: as open_engine. Cost: a
    connection and a read, or two.
    """
    prefix = _PREFIXES.get(engine_url(named).partition(":")[0])
    if prefix is None or await _has_rows(named, limits, PREFIX) or not await _has_rows(named, limits, prefix):
        return
    raise Unfit(
        "the engine holds shared queues in the form of earlier versions of FlintMQ. Drain them with that version and delete the rows"
        " whose keys begin with 'flintmq' and the byte 1, or name another engine"
    )
