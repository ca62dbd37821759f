"""The etcd engine: what comes late, what is gone, who dies."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from flintmq.config import Limits
from flintmq.kv.engine import Conflict, EngineError, TooLarge, TooOld, UnknownOutcome
from flintmq.kv.engine import Unavailable as EngineUnavailable
from flintmq.kv.etcd_client import Doubtful, EtcdClient
from flintmq.kv.etcd_engine import EtcdEngine
from flintmq.kv.opening import engine_url, open_engine
from flintmq.shared.keys import SIGNALS
from flintmq.shared.owners import Owners
from flintmq.shared.queue import Message, SharedQueue, declare_queue
from tests.kv.engines import etcd
from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.servers import Unavailable

LIMITS = Limits()
WAIT_S = 60


@pytest.fixture
def engine() -> Iterator[EtcdEngine]:
    made = etcd()
    yield made
    made.close()


def put(engine: Any, key: bytes, value: bytes) -> None:
    transaction = engine.begin()
    transaction.set(key, value)
    transaction.commit()


def get(engine: Any, key: bytes) -> bytes | None:
    value: bytes | None = engine.begin().get(key)
    return value


def test_a_request_without_an_answer_that_comes_late_does_nothing(engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller is told that it is over, makes it anew, and then the first one arrives."""
    late: list[tuple[str, Any]] = []
    call = engine.client.call

    def lose(path: str, body: Any) -> Any:
        if path == "/v3/kv/txn" and not late:
            late.append((path, body))
            raise Doubtful("no answer")
        return call(path, body)

    monkeypatch.setattr(engine.client, "call", lose)
    transaction = engine.begin()
    transaction.set(b"a", b"late")
    with pytest.raises(UnknownOutcome):
        transaction.commit()
    put(engine, b"a", b"later")
    assert not call(*late[0]).get("succeeded")
    assert get(engine, b"a") == b"later"


def test_an_answer_that_is_lost_is_an_unknown_outcome_and_a_queue_makes_it_once(
    engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = declare_queue(engine, "/", "q")
    owners = Owners(engine, LIMITS)
    queue = SharedQueue(engine, keys, owners.register(), LIMITS)
    call = engine.client.call
    lost = 0

    def lose(path: str, body: Any) -> Any:
        nonlocal lost
        answer = call(path, body)
        if path == "/v3/kv/txn" and lost < 2:
            lost += 1
            raise Doubtful("the answer is lost")
        return answer

    monkeypatch.setattr(engine.client, "call", lose)
    queue.enqueue([Message(b"one")])
    queue.enqueue([Message(b"two")])
    assert lost == 2
    assert [one.content for one in queue.take(10, 1 << 20)[0]] == [b"one", b"two"]


def test_a_transaction_that_read_what_is_compacted_is_too_old(engine: EtcdEngine) -> None:
    put(engine, b"a", b"1")
    transaction = engine.begin()
    transaction.get(b"b")
    put(engine, b"a", b"2")
    put(engine, b"a", b"3")
    revision = engine.client.call("/v3/kv/range", {"key": "YQ=="})["header"]["revision"]
    engine.client.call("/v3/kv/compaction", {"revision": revision})
    with pytest.raises(TooOld):
        transaction.get(b"a")


def test_a_session_that_ended_is_begun_anew(engine: EtcdEngine) -> None:
    """Its lease ran out, or somebody removed it."""
    from flintmq.kv.etcd_client import encode

    engine.client.call("/v3/kv/deleterange", {"key": encode(engine._session)})
    with pytest.raises(Conflict):
        put(engine, b"a", b"1")
    put(engine, b"a", b"2")
    assert get(engine, b"a") == b"2"


def test_a_range_is_cleared_around_what_is_written_in_it(engine: EtcdEngine) -> None:
    for key in (b"a", b"b", b"c", b"d"):
        put(engine, key, b"old")
    transaction = engine.begin()
    transaction.clear_range(b"a", b"d")
    transaction.set(b"b", b"new")
    transaction.clear(b"c")
    transaction.commit()
    transaction = engine.begin()
    assert transaction.range(b"a", b"z", 10) == [(b"b", b"new"), (b"d", b"old")]


def test_more_than_a_request_takes_is_refused_before_it_is_sent(engine: EtcdEngine) -> None:
    transaction = engine.begin()
    with pytest.raises(TooLarge):
        for number in range(200):
            transaction.set(b"a%d" % number, b"")


def test_a_large_message_goes_in_parts(engine: EtcdEngine) -> None:
    keys = declare_queue(engine, "/", "q")
    owners = Owners(engine, LIMITS)
    queue = SharedQueue(engine, keys, owners.register(), LIMITS)
    body = bytes(range(256)) * 12_000
    queue.enqueue([Message(body)])
    taken, _ = queue.take(1, 1)
    assert queue.load(taken[0]) == body
    queue.settle(taken)
    assert queue.read_counts().ready == 0


def test_another_process_is_told_by_the_stream(engine: EtcdEngine) -> None:
    other = EtcdEngine(tuple(f"{one.scheme}://{one.netloc}" for one in engine.client._endpoints), LIMITS, engine.namespace)
    told = threading.Event()
    transaction = engine.begin()
    transaction.watch(b"signal", told.set)
    transaction.commit()
    put(other, b"signal", b"1")
    assert told.wait(WAIT_S)
    other.close()


@pytest.fixture
def cluster() -> Iterator[EtcdCluster]:
    try:
        with etcd_cluster(3) as made:
            yield made
    except Unavailable as error:
        pytest.skip(f"no etcd: {error}")


def test_a_cluster_of_three_loses_members_and_the_queue_loses_nothing(cluster: EtcdCluster, tmp_path: Path) -> None:
    """Each member is killed in turn and comes back, while one thread enqueues and one takes and settles."""
    url = "etcd://" + ",".join(endpoint.removeprefix("http://") for endpoint in cluster.endpoints)
    engines = [open_engine(url, LIMITS, SIGNALS) for _ in range(2)]
    keys = declare_queue(engines[0], "/", "q")
    queues = [SharedQueue(engine, keys, Owners(engine, LIMITS).register(), LIMITS) for engine in engines]
    accepted: list[bytes] = []
    doubtful: set[bytes] = set()
    got: list[bytes] = []
    over, all_sent = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def again(action: Any) -> Any:
        """Until the engine answers: what it said nothing of is made anew only where that is harmless."""
        while True:
            try:
                return action()
            except UnknownOutcome:
                raise
            except EngineError:
                continue

    def enqueue() -> None:
        try:
            number = 0
            while not over.is_set():
                body = b"%06d" % number
                number += 1
                try:
                    again(lambda body=body: queues[0].enqueue([Message(body)]))
                    accepted.append(body)
                except UnknownOutcome:
                    doubtful.add(body)
        except BaseException as error:
            errors.append(error)
        finally:
            all_sent.set()

    def take() -> None:
        try:
            while not (all_sent.is_set() and set(accepted) <= set(got)):
                try:
                    taken, _ = again(lambda: queues[1].take(20, 1 << 20))
                except UnknownOutcome:  # what it got is what this node holds: it settles at once whatever it takes
                    taken = again(lambda: queues[1].held(100))
                while taken:
                    try:
                        again(lambda taken=taken: queues[1].settle(taken))
                    except UnknownOutcome:
                        continue  # a settled lease is no error
                    got.extend(one.content for one in taken)
                    break
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=enqueue), threading.Thread(target=take)]
    for thread in threads:
        thread.start()
    for number in range(3):
        seen = len(accepted)
        cluster.kill(number)
        while len(accepted) < seen + 20 and not errors:
            over.wait(0.02)
        cluster.start(number)
        cluster.wait_healthy(number)
    over.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert not errors, errors
    assert len(got) == len(set(got)), "a message came twice"
    assert set(accepted) <= set(got) <= set(accepted) | doubtful
    assert [body for body in got if body in set(accepted)] == accepted, "the order of the commits"
    for engine in engines:
        engine.close()


USER, PASSWORD = "broker@site", "p:ss w/rd%"


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdCluster]:
    """A cluster that asks for a login; USER may read and write what begins with flintmq/."""
    try:
        with etcd_cluster() as cluster:
            client = EtcdClient(cluster.endpoints, 30)
            key, end = base64.b64encode(b"flintmq/").decode(), base64.b64encode(b"flintmq0").decode()
            for path, body in (
                ("user/add", {"name": "root", "password": "r"}),
                ("role/add", {"name": "root"}),
                ("user/grant", {"user": "root", "role": "root"}),
                ("user/add", {"name": USER, "password": PASSWORD}),
                ("role/add", {"name": "shared"}),
                ("role/grant", {"name": "shared", "perm": {"permType": "READWRITE", "key": key, "range_end": end}}),
                ("user/grant", {"user": USER, "role": "shared"}),
                ("enable", {}),
            ):
                client.call(f"/v3/auth/{path}", body)
            client.close()
            yield cluster
    except Unavailable as error:
        pytest.skip(f"no etcd: {error}")


def url_of(cluster: EtcdCluster, user: str, password: str) -> str:
    host = cluster.endpoints[0].removeprefix("http://")
    return f"etcd://{quote(user, safe='')}:{quote(password, safe='')}@{host}"


def test_a_login_and_a_token_that_etcd_forgot(guarded: EtcdCluster, tmp_path: Path) -> None:
    file = tmp_path / "engine"
    file.write_text(url_of(guarded, USER, PASSWORD) + "\n")
    with contextlib.closing(open_engine(f"file:{file}", LIMITS, SIGNALS)) as engine:
        put(engine, SIGNALS + b"a", b"1")
        told = threading.Event()
        transaction = engine.begin()
        assert transaction.get(SIGNALS + b"a") == b"1"
        transaction.watch(SIGNALS + b"a", told.set)
        transaction.commit()
        guarded.kill(0)
        guarded.start(0)
        guarded.wait_healthy(0)  # tokens are in etcd's memory
        until = time.monotonic() + WAIT_S
        while get_or_none(engine, SIGNALS + b"a") != b"2":
            assert time.monotonic() < until
            with contextlib.suppress(EngineError):  # connections of before
                put(engine, SIGNALS + b"a", b"2")
        assert told.wait(WAIT_S)


def get_or_none(engine: EtcdEngine, key: bytes) -> bytes | None:
    try:
        return get(engine, key)
    except EngineError:
        return None


@pytest.mark.parametrize("login", [None, (USER, "wrong"), ("nobody", PASSWORD)])
def test_without_a_right_login_there_is_no_engine(guarded: EtcdCluster, login: tuple[str, str] | None) -> None:
    url = "etcd://" + guarded.endpoints[0].removeprefix("http://") if login is None else url_of(guarded, *login)
    with pytest.raises(EngineUnavailable) as told:
        open_engine(url, LIMITS, SIGNALS)
    assert "wrong" not in str(told.value) and PASSWORD not in str(told.value)


@pytest.mark.parametrize(
    "url", ["etcd://user@host:1", "etcd://:secret@host:1", "etcd://user:secret@", "etcdx://u:secret@h", "etcd:h", "file:/none"]
)
def test_a_url_of_no_engine_is_told_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"is no engine|No such file") as told:
        engine_url(url)
    assert "secret" not in str(told.value)
