"""The engine on real etcd: members that die, users, TLS, a quota, compaction; and the bytes of its messages."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import urllib.request
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, EngineError, Full, TooLarge, Unavailable, Unfit, UnknownOutcome
from flintmq.engines.etcd import wire
from flintmq.engines.etcd.members import _Kind, judge
from flintmq.engines.opening import open_engine
from tests.engines.engines import etcd_url
from tests.support.broker import self_signed_certificate
from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.servers import Unavailable as NoServer

LIMITS = Limits()
WAIT_S = 60


def members(count: int = 1, *options: str, tls: tuple[str, str, str] | None = None) -> contextlib.AbstractContextManager[EtcdCluster]:
    try:
        return etcd_cluster(count, options, tls)
    except NoServer as error:
        pytest.skip(f"no etcd: {error}")


def run(url: str, story: Callable[[Engine], Coroutine[Any, Any, None]], limits: Limits = LIMITS) -> None:
    async def whole() -> None:
        engine = open_engine(url, limits)
        try:
            await asyncio.wait_for(story(engine), WAIT_S)
        finally:
            await engine.close()

    asyncio.run(whole())


async def insist(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Its answer, as soon as the engine gives one."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(Unavailable, UnknownOutcome):
                return await call()
            await asyncio.sleep(0.05)


def post(cluster: EtcdCluster, path: str, **body: Any) -> Any:
    request = urllib.request.Request(cluster.endpoints[0] + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


# --- members that die ---------------------------------------------------------------------------------------------------
def test_while_members_are_killed_outcomes_are_true_and_a_watch_misses_nothing() -> None:
    """Rows of True are there, rows of Unavailable are not, and the others may be."""
    confirmed: set[bytes] = set()
    refused: set[bytes] = set()
    told: set[bytes] = set()

    with members(3) as cluster:

        async def write(engine: Engine, me: int, stop: asyncio.Event) -> None:
            number = 0
            while not stop.is_set():
                key = b"row/%d/%d" % (me, number)
                number += 1
                try:
                    assert await engine.commit(Commit([(b"owner", b"me"), (key, None)], {key: bytes(2_000)}))
                    confirmed.add(key)
                except Unavailable:
                    refused.add(key)
                    await asyncio.sleep(0.02)
                except UnknownOutcome:
                    pass

        async def follow(engine: Engine) -> None:
            async for keys in engine.watch(b"row/", b"row0"):
                if keys is None:
                    told.update(key for key, _ in await insist(lambda: engine.scan(b"row/", b"row0", 1_000_000, 1 << 30)))
                else:
                    told.update(keys)

        async def story(engine: Engine) -> None:
            await insist(lambda: engine.commit(Commit(puts={b"owner": b"me"})))
            stop = asyncio.Event()
            tasks = [asyncio.create_task(write(engine, me, stop)) for me in range(8)]
            reader = asyncio.create_task(follow(engine))
            for victim in (0, 1, 2):
                before = len(confirmed)
                while len(confirmed) < before + 100:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(cluster.kill, victim)
                before = len(confirmed)
                while len(confirmed) < before + 100:
                    await asyncio.sleep(0.01)
                cluster.start(victim)
                await asyncio.to_thread(cluster.wait_healthy, victim)
            stop.set()
            await asyncio.gather(*tasks)
            kept = {key for key, _ in await insist(lambda: engine.scan(b"row/", b"row0", 1_000_000, 1 << 30))}
            assert confirmed <= kept
            assert not refused & kept
            while not kept <= told:
                assert not reader.done()
                await asyncio.sleep(0.01)
            reader.cancel()

        run(etcd_url(cluster), story)
    assert len(confirmed) >= 600


def test_a_commit_that_a_stopped_member_does_not_answer_is_unknown_and_a_changed_row_ends_it() -> None:
    with members() as cluster:

        async def story(engine: Engine) -> None:
            await engine.commit(Commit(puts={b"owner": b"me"}))
            cluster.signal(0, signal.SIGSTOP)
            with pytest.raises(UnknownOutcome):
                await engine.commit(Commit([(b"owner", b"me")], {b"late": b"1"}))
            with pytest.raises(Unavailable):
                await engine.get([b"late"])
            cluster.signal(0, signal.SIGCONT)
            assert await insist(lambda: engine.commit(Commit([(b"owner", b"me")], {b"owner": b"other"})))
            now = await engine.get([b"late"])
            for number in range(50):
                await engine.commit(Commit(puts={b"n": b"%d" % number}))
            assert await engine.get([b"late"]) == now

        run(etcd_url(cluster), story, Limits(engine_etcd_request_ms=500))


def test_a_watch_leaves_a_member_that_answers_no_calls() -> None:
    with members(3) as cluster:

        async def story(engine: Engine) -> None:
            events = engine.watch(b"a", b"b")
            assert await anext(events) is None
            await insist(lambda: engine.commit(Commit(puts={b"a": b"1"})))
            assert await anext(events) == {b"a"}
            cluster.signal(0, signal.SIGSTOP)
            await insist(lambda: engine.commit(Commit(puts={b"n": b""})))
            async with asyncio.timeout(8):  # pings alone would need longer
                assert await anext(events) is None
            event = None
            while event is None:  # a commit that waits for a leader too long ends the stream of another member, too
                await insist(lambda: engine.commit(Commit(puts={b"a": b"2"})))
                event = await anext(events)
            assert event == {b"a"}

        run(etcd_url(cluster), story, Limits(engine_etcd_request_ms=500))


def test_where_nobody_listens_nothing_happened() -> None:
    with members() as cluster:
        url = etcd_url(cluster)

    async def story(engine: Engine) -> None:
        for call in (engine.connect(), engine.commit(Commit(puts={b"a": b""})), engine.get([b"a"]), engine.usage(), engine.tidy()):
            with pytest.raises(Unavailable, match=r"no connection|no member"):
                await call

    run(url, story)


# --- users, TLS -----------------------------------------------------------------------------------------------------------
def make_user(cluster: EtcdCluster, name: str, role: str, begin: bytes = b"", end: bytes = b"") -> None:
    post(cluster, "/v3/auth/user/add", name=name, password="secret-word")
    with contextlib.suppress(urllib.error.HTTPError):  # the role root is there
        post(cluster, "/v3/auth/role/add", name=role)
    if end:
        bounds = {"key": base64.b64encode(begin).decode(), "range_end": base64.b64encode(end).decode()}
        post(cluster, "/v3/auth/role/grant", name=role, perm={"permType": "READWRITE", **bounds})
    post(cluster, "/v3/auth/user/grant", user=name, role=role)


def test_a_user_of_the_prefix_reads_writes_and_watches_and_outlives_the_end_of_its_token() -> None:
    with members() as cluster:
        make_user(cluster, "root", "root")
        make_user(cluster, "flint", "rows", b"flintmq/", b"flintmq0")
        post(cluster, "/v3/auth/enable")
        place = etcd_url(cluster).removeprefix("etcd://")

        async def story(engine: Engine) -> None:
            await engine.connect()
            events = engine.watch(b"a", b"b")
            assert await anext(events) is None
            assert await engine.commit(Commit([(b"a", None)], {b"a": b"1"}))
            assert await anext(events) == {b"a"}
            await asyncio.to_thread(cluster.kill, 0)  # etcd's simple tokens end with its process
            cluster.start(0)
            await asyncio.to_thread(cluster.wait_healthy, 0)
            assert await insist(lambda: engine.commit(Commit([(b"a", b"1")], {b"a": b"2"})))
            assert await anext(events) is None
            assert await engine.commit(Commit(deletes=[b"a"]))
            while b"a" not in (await anext(events) or ()):
                pass
            await engine.usage()
            await engine.tidy()

        run(f"etcd://flint:secret-word@{place}", story)

        async def refused(engine: Engine) -> None:
            for call in (engine.connect(), engine.commit(Commit(puts={b"a": b""}))):
                with pytest.raises(Unavailable, match=r"password|USER:PASSWORD|permission denied|user name") as error:
                    await call
                assert "secret" not in str(error.value)

        run(f"etcd://flint:secret-other@{place}", refused)
        run(f"etcd://nobody:secret-word@{place}", refused)
        run(f"etcd://{place}", refused)


def test_a_login_is_no_harm_where_etcd_asks_for_none() -> None:
    with members() as cluster:
        run(f"etcd://flint:secret@{etcd_url(cluster).removeprefix('etcd://')}", lambda engine: _put(engine, b"a"))


async def _put(engine: Engine, key: bytes) -> None:
    assert await engine.commit(Commit(puts={key: b"1"}))


def test_tls_with_a_client_certificate_and_no_rows_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with self_signed_certificate() as (cert, key), self_signed_certificate() as (other_cert, _), members(tls=(cert, key, cert)) as cluster:
        place = cluster.endpoints[0].removeprefix("https://")
        run(f"etcds://{place}?ca={cert}&cert={cert}&key={key}", lambda engine: _put(engine, b"a"))

        async def refused(engine: Engine) -> None:
            with pytest.raises(EngineError):
                await engine.connect()

        few = Limits(engine_etcd_request_ms=1_000)
        with monkeypatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", cert)
            run(f"etcds://{place}?cert={cert}&key={key}", lambda engine: _put(engine, b"b"))
        run(f"etcds://{place}?cert={cert}&key={key}", refused, few)
        for url in (f"etcds://{place}?ca={cert}", f"etcds://{place}?ca={other_cert}&cert={cert}&key={key}", f"etcd://{place}"):
            run(url, refused, few)


# --- room ---------------------------------------------------------------------------------------------------------------
def test_above_the_quota_puts_are_refused_and_deletes_then_tidying_end_it() -> None:
    quota = 16 << 20
    with members(1, "--quota-backend-bytes", str(quota)) as cluster:

        async def story(engine: Engine) -> None:
            numbers = iter(range(1_000))
            confirmed, refused = set(), set()

            async def fill() -> None:
                for number in numbers:
                    key = b"row%03d" % number
                    try:
                        assert await engine.commit(Commit([(b"owner", None)], {key: bytes(256 * 1024)}))
                        confirmed.add(key)
                    except UnknownOutcome:
                        pass  # etcd answers the commit that crosses its quota as those that it refuses
                    except Full:
                        refused.add(key)
                        return

            await asyncio.gather(*(fill() for _ in range(8)))
            kept = {key for key, _ in await engine.scan(b"row", b"rox", 1_000, 1 << 30)}
            assert confirmed <= kept
            assert not refused & kept
            with pytest.raises(Full):
                await engine.commit(Commit(puts={b"a": b""}))
            usage = await engine.usage()
            assert usage.full
            assert usage.bytes > quota // 2
            await engine.tidy()  # rows still take it all: the alarm stays
            with pytest.raises(Full):
                await engine.commit(Commit(puts={b"a": b""}))
            for key in kept:
                assert await engine.commit(Commit([(b"owner", None)], deletes=[key]))
            await engine.tidy()
            assert not (await engine.usage()).full
            assert await engine.commit(Commit(puts={b"a": b""}))

        run(etcd_url(cluster), story, Limits(engine_etcd_quota_bytes=quota, engine_etcd_defragment_pause_ms=0))


def test_a_full_etcd_tells_a_user_without_the_rights_to_end_that() -> None:
    quota = 8 << 20
    with members(1, "--quota-backend-bytes", str(quota)) as cluster:
        make_user(cluster, "root", "root")
        make_user(cluster, "flint", "rows", b"flintmq/", b"flintmq0")
        post(cluster, "/v3/auth/enable")

        async def story(engine: Engine) -> None:
            with contextlib.suppress(UnknownOutcome, Full):
                for number in range(200):
                    await engine.commit(Commit(puts={b"row%03d" % number: bytes(256 * 1024)}))
            assert (await engine.usage()).full
            with pytest.raises(Unavailable, match="role root"):
                await engine.tidy()

        run(f"etcd://flint:secret-word@{etcd_url(cluster).removeprefix('etcd://')}", story, Limits(engine_etcd_quota_bytes=quota))


def test_pages_and_watches_go_on_while_another_node_compacts() -> None:
    limits = Limits(engine_etcd_history_ms=0)
    with members() as cluster:

        async def story(engine: Engine) -> None:
            rows = [b"p%02d" % number for number in range(60)]
            await engine.commit(Commit(puts=dict.fromkeys(rows, b"0" * 1_000)))
            events = engine.watch(b"", b"\xff")
            assert await anext(events) is None
            for number in range(30):
                page, *_ = await asyncio.gather(
                    engine.scan(b"p", b"q", 100, 1 << 24),
                    engine.commit(Commit(puts=dict.fromkeys(rows, b"%d" % (number % 10) * 1_000))),
                    engine.tidy(),
                    engine.tidy(),
                )
                assert len({value for _, value in page}) == 1
                assert len(page) == 60
                assert await anext(events) is not None

        run(etcd_url(cluster), story, limits)


# --- bytes ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        ("UNAVAILABLE", "etcdserver: no leader", "ELSEWHERE"),
        ("UNAVAILABLE", "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1", "ELSEWHERE"),
        ("UNAVAILABLE", "etcdserver: request timed out", "OPEN"),
        ("UNAVAILABLE", "etcdserver: request timed out, possibly due to previous leader failure", "OPEN"),
        ("UNAVAILABLE", "etcdserver: leader changed", "OPEN"),
        ("UNAVAILABLE", "etcdserver: server stopped", "OPEN"),
        ("UNAVAILABLE", "Socket closed", "OPEN"),
        ("UNAVAILABLE", "", "OPEN"),
        ("CANCELLED", "", "OPEN"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", "OPEN"),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", "REFUSED"),
        ("RESOURCE_EXHAUSTED", "too_many_pings", "OPEN"),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", "NOSPACE"),
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (2 vs. 1)", "LARGE"),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", "LARGE"),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", "STALE"),
        ("PERMISSION_DENIED", "etcdserver: permission denied", "REFUSED"),
        ("UNKNOWN", "proxy: permission denied", "OPEN"),
    ],
)
def test_an_error_says_that_nothing_happened_only_where_etcd_says_so(code: str, text: str, kind: str) -> None:
    assert judge(grpc.StatusCode[code], text) is _Kind[kind]


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused_by_a_value_error(data: bytes) -> None:
    decoders = (
        wire.range_answer, wire.transaction_answer, wire.watch_answer, wire.status_answer, wire.alarm_answer, wire.token_answer
    )  # fmt: skip
    for decode in decoders:
        with contextlib.suppress(ValueError):
            decode(data)


def test_a_commit_above_etcds_own_limit_is_too_large() -> None:
    with members(1, "--max-request-bytes", "100000") as cluster:

        async def story(engine: Engine) -> None:
            with pytest.raises(TooLarge):
                await engine.commit(Commit(puts={b"a": bytes(200_000)}))
            assert await engine.get([b"a"]) == [None]

        run(etcd_url(cluster), story)


def test_an_etcd_that_is_too_old_or_no_etcd_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    with members() as cluster:

        async def story(engine: Engine) -> None:
            for version in ("3.3.27", "", "x.y"):
                monkeypatch.setattr(wire, "status_answer", lambda data, version=version: wire.StatusAnswer(version))
                with pytest.raises(Unfit, match="too old"):
                    await engine.connect()
            monkeypatch.setattr(wire, "status_answer", lambda data: wire.StatusAnswer("3.10.0-rc.1"))
            await engine.connect()

        run(etcd_url(cluster), story)


def test_a_url_of_etcd_is_read_or_refused_by_a_text_without_the_password(tmp_path: Path) -> None:
    for url in (
        "etcd://", "etcd://host", "etcd://host:x", "etcd://host:70000", "etcd://a:1,,b:2", "etcd://a:1/path", "etcd://u@a:1", "etcd://:secret@a:1",
        "etcd://u:secret@a:1?ca=x", "etcds://u:secret@a:1?cert=x", "etcds://u:secret@a:1?other=x", f"etcds://u:secret@a:1?ca={tmp_path}/none",
        "etcd://u:secret/secret@a:1", "etcd://u:secret#secret@a:1", "etcd://u:secret?secret@a:1",
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            open_engine(url, LIMITS)
        assert "secret" not in str(error.value)
    engine = open_engine("etcd://u%40x:secret%2F@a:1,[::1]:2/", LIMITS)
    assert engine.name == "etcd://a:1,[::1]:2"
