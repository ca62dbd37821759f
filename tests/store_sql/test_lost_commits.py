"""A commit whose answer is lost ends saving and the node; one that was refused does not. Failed before and after it took effect."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.errors import StoreError
from flintmq.ports import BindingRecord, ExchangeRecord, QueueRecord
from flintmq.store.sql.changes import Save
from flintmq.store.sql.definitions import SqlDefinitions
from flintmq.store.sql.failures import NotSaved
from flintmq.testing.broker import Broker
from tests.support.postgres import PostgresServer

PERSISTENT = {"delivery_mode": 2}


class FaultyConnection:
    """A database connection whose next commit fails: `before` it took effect, or `after`."""

    def __init__(self, connection: Any, error: BaseException) -> None:
        self.connection = connection
        self.error = error
        self.when = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def execute(self, text: Any, *parameters: Any) -> Any:
        if not self.when or text in ("BEGIN", "BEGIN IMMEDIATE", "ROLLBACK") or str(text).startswith("SELECT"):
            return self.connection.execute(text, *parameters)
        if text != "COMMIT" and self.in_transaction():
            return self.connection.execute(text, *parameters)
        when, self.when = self.when, ""
        if when == "after":
            self.connection.execute(text, *parameters)
        raise self.error

    def in_transaction(self) -> bool:
        if isinstance(self.connection, sqlite3.Connection):
            return self.connection.in_transaction
        return bool(self.connection.info.transaction_status) or self.connection._pipeline is not None


def sync_failed() -> sqlite3.Error:
    """What SQLite says when the fdatasync of its WAL fails."""
    return sqlite_error(sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error")


def sqlite_error(code: int, text: str) -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    error.sqlite_errorname = text
    return error


def break_next(definitions: SqlDefinitions, error: BaseException, when: str) -> None:
    """The next commit of `definitions` fails with `error`."""
    driver: Any = definitions._driver
    driver._connection = FaultyConnection(driver._connection, error)
    driver._connection.when = when


def lose_one_commit(open_: Callable[[], SqlDefinitions], error: BaseException, when: str, group: bool) -> None:
    """One commit fails; then saving has ended, the listener knows, and the next broker finds what the database made of it."""
    definitions = open_()
    told: list[StoreError] = []
    definitions.on_failure(told.append)
    queue = QueueRecord("/", "q", definitions.new_queue_id(), False, {})
    break_next(definitions, error, when)
    if group:
        answers: list[Exception | None] = []
        definitions.submit([Save(queue), Save(ExchangeRecord("/", "x", "direct", False, False, {}))], answers.append)
    else:
        with pytest.raises(StoreError):
            definitions.save_queue(queue)
    definitions.close()
    if group:
        assert isinstance(answers[0], StoreError)
    assert definitions.failed is not None and not isinstance(definitions.failed, NotSaved)
    assert told == [definitions.failed]
    with pytest.raises(StoreError):
        definitions.save_binding(BindingRecord("/", "amq.direct", "queue", "q", b"k", {}))
    again = open_()
    assert [one.name for one in again.load_queues("/")] == (["q"] if when == "after" else [])
    again.close()


@pytest.mark.parametrize("error", [sync_failed(), MemoryError()], ids=["fsync", "memory"])
@pytest.mark.parametrize("group", [False, True], ids=["one", "group"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_of_sqlite_with_an_unknown_outcome(tmp_path: Path, when: str, group: bool, error: BaseException) -> None:
    lose_one_commit(lambda: SqlDefinitions.open(tmp_path), error, when, group)


@pytest.mark.parametrize("group", [False, True], ids=["one", "group"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_of_postgresql_whose_answer_is_lost(postgres: PostgresServer, catalog: str, when: str, group: bool) -> None:
    import psycopg

    lost = psycopg.OperationalError("server closed the connection unexpectedly")
    lose_one_commit(lambda: SqlDefinitions(postgres.url(), catalog), lost, when, group)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY])
def test_a_refused_commit_changes_nothing_and_ends_nothing(tmp_path: Path, code: int) -> None:
    definitions = SqlDefinitions.open(tmp_path)
    told: list[StoreError] = []
    definitions.on_failure(told.append)
    queue = QueueRecord("/", "q", definitions.new_queue_id(), False, {})
    break_next(definitions, sqlite_error(code, "refused"), "before")
    with pytest.raises(NotSaved):
        definitions.save_queue(queue)
    assert definitions.failed is None and not told
    definitions.save_queue(queue)
    assert len(definitions.load_queues("/")) == 1
    definitions.close()


def test_a_lost_delete_ends_the_node_and_nothing_is_confirmed_after_it(tmp_path: Path, connect: Callable[..., Any]) -> None:
    """The queue is gone in the database, and still there in memory: a confirm would be for a message that the next start throws away."""
    with Broker(data_dir=tmp_path) as broker:
        assert broker.node.store is not None
        connection = connect(broker)
        channel, other = connection.channel(), connect(broker).channel()
        channel.queue("q", durable=True)
        other.call("confirm.select")
        other.publish(b"1", routing_key="q", **PERSISTENT)
        other.expect("basic.ack")
        break_next(broker.node.store.definitions, sync_failed(), "after")
        channel.send("queue.delete", queue="q")
        assert broker.node.failed.wait(30)
        assert isinstance(broker.node.failure, StoreError)
        other.publish(b"2", routing_key="q", **PERSISTENT)
        assert other.ready("q") == 2  # it was read, and stands in memory
        other.nothing()


def test_a_refused_declare_is_answered_and_the_node_goes_on(tmp_path: Path, connect: Callable[..., Any]) -> None:
    with Broker(data_dir=tmp_path) as broker:
        assert broker.node.store is not None
        break_next(broker.node.store.definitions, sqlite_error(sqlite3.SQLITE_FULL, "database or disk is full"), "before")
        channel = connect(broker).channel()
        channel.send("queue.declare", queue="q", durable=True)
        channel.connection.expect_close(541, "the definitions can't be saved")
        assert not broker.node.failed.is_set()
        channel = connect(broker).channel()
        assert channel.queue("q", durable=True) == "q"
