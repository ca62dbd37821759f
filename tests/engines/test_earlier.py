"""Engines that hold shared queues of an earlier form are told apart, on real etcd and on the stand-in of FoundationDB's binding."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.engines import earlier
from flintmq.engines.earlier import refuse_earlier
from flintmq.engines.engine import Commit, Engine, Unfit
from flintmq.engines.fdb import FdbEngine
from flintmq.engines.opening import PREFIX, open_engine
from tests.engines.engines import NETWORK, etcd_url
from tests.support.etcd import etcd_cluster
from tests.support.servers import Unavailable
from tests.twins.fdb_binding import Binding

LIMITS = Limits()


async def _put(engine: Engine, key: bytes) -> None:
    try:
        assert await engine.commit(Commit(puts={key: b"1"}))
    finally:
        await engine.close()


async def _story(url: str, earlier_row: Engine, todays: Engine) -> None:
    await refuse_earlier(url, LIMITS)  # an engine without rows
    await _put(earlier_row, b"\x01n/queue")
    with pytest.raises(Unfit, match="form of earlier versions of FlintMQ"):
        await refuse_earlier(url, LIMITS)
    await _put(todays, b"n/a")
    await refuse_earlier(url, LIMITS)  # one that went on with today's


def test_etcd_with_rows_of_the_earlier_form_and_none_of_todays_is_refused() -> None:
    try:
        with etcd_cluster(1) as cluster:
            url = etcd_url(cluster)
            asyncio.run(_story(url, open_engine(url, LIMITS, b"flintmq"), open_engine(url, LIMITS)))
    except Unavailable as error:
        pytest.skip(f"no etcd: {error}")


def test_foundationdb_with_rows_of_the_earlier_form_and_none_of_todays_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binding = Binding(lambda: None, NETWORK)
    file = tmp_path / "fdb.cluster"
    file.touch()

    def opened(url: str, limits: Limits, prefix: bytes = PREFIX) -> Any:
        return FdbEngine(binding, file, limits, prefix)

    class Raw(FdbEngine):
        """Rows at their keys in FoundationDB."""

        def __init__(self) -> None:
            super().__init__(binding, file, LIMITS, b"raw")
            self._space = b"flintmq"

    monkeypatch.setattr(earlier, "open_engine", opened)
    asyncio.run(_story(f"fdb:{file}", Raw(), opened("", LIMITS)))


@pytest.mark.parametrize("url", ["sqlite:rows.db", "memory:", "postgresql://host/none"])
def test_engines_that_never_had_the_earlier_form_are_not_asked(url: str) -> None:
    asyncio.run(refuse_earlier(url, LIMITS))
