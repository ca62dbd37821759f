"""The PostgreSQL engine beside what the suite of all engines asks for: locks, lost connections, settings of servers that lose commits."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import Commit, Engine, EngineError, Full, Unavailable, Unfit, UnknownOutcome
from flintmq.engines.opening import open_engine
from tests.engines.engines import LIMITS, postgres_of_tests
from tests.support.postgres import PostgresServer

pytest.importorskip("psycopg")
WAIT_S = 60
# a request that has to end in a test
HASTY = Limits(engine_postgres_request_ms=1_500)


class Place:
    """A schema of a test. open(): one more client."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.schema = f"t{secrets.token_hex(6)}"
        self._opened: list[Engine] = []

    def open(self, more: str = "", limits: Limits = LIMITS, user: str = "postgres", password: str | None = None) -> Engine:
        engine = open_engine(f"{self.server.url(user=user, password=password)}?schema={self.schema}{more}", limits)
        self._opened.append(engine)
        return engine

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            try:
                await asyncio.wait_for(story, WAIT_S)
            finally:
                for engine in self._opened:
                    await engine.close()

        asyncio.run(whole())

    def end_connections(self) -> None:
        self.server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'flintmq'")

    @contextlib.contextmanager
    def setting(self, name: str, value: str) -> Iterator[None]:
        """The server's own, for a while."""
        import psycopg

        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            try:
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
                connection.execute("SELECT pg_reload_conf()")
                yield
            finally:
                connection.execute(f"ALTER SYSTEM RESET {name}".encode())
                connection.execute("SELECT pg_reload_conf()")


@pytest.fixture
def place() -> Place:
    return Place(postgres_of_tests())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.02)


# --- P1, P2 ---------------------------------------------------------------------------------------------------------------
def test_nodes_that_open_a_new_database_at_once_all_can(place: Place) -> None:
    async def story() -> None:
        engines = [place.open() for _ in range(5)]
        assert all(await asyncio.gather(*(engine.commit(Commit(puts={b"%d" % number: b""})) for number, engine in enumerate(engines))))
        assert len(await engines[0].scan(b"", b"\xff", 10, 1_000)) == 5

    place.run(story())


def test_writers_that_compare_and_set_one_row_succeed_once_for_each_value(place: Place) -> None:
    """Also for the first value, which stands against a row that is not there."""

    async def story() -> None:
        engines = [place.open() for _ in range(3)]
        successes = 0

        async def write(engine: Engine) -> None:
            nonlocal successes
            while True:
                (value,) = await engine.get([b"n"])
                if value == b"40":
                    return
                is_done = await engine.commit(Commit([(b"n", value)], {b"n": b"%d" % (int(value or b"0") + 1)}))
                successes += is_done

        await asyncio.gather(*(write(engine) for engine in engines for _ in range(4)))
        assert successes == 40

    place.run(story())


def test_transfers_with_clears_beside_them_keep_the_sum(place: Place) -> None:
    """Each transfer compares two rows and writes both; a clear takes the rows of a range and puts them back elsewhere."""

    async def story() -> None:
        engines = [place.open() for _ in range(2)]
        await engines[0].commit(Commit(puts={b"a%d" % number: b"10" for number in range(6)}))
        chance = random.Random(38)

        async def move(engine: Engine) -> None:
            for _ in range(25):
                pair = chance.sample([b"a%d" % number for number in range(6)], 2)
                one, two = await engine.get(pair)
                if one is not None and two is not None:
                    puts = {pair[0]: b"%d" % (int(one) - 1), pair[1]: b"%d" % (int(two) + 1)}
                    await engine.commit(Commit([(pair[0], one), (pair[1], two)], puts))

        async def clear(engine: Engine) -> None:
            for number in range(10):
                rows = dict(await engine.scan(b"a", b"c", 100, 10_000))
                conditions = [*rows.items(), *((key, None) for key in (b"a%d" % index for index in range(6)) if key not in rows)]
                total = b"%d" % sum(map(int, rows.values()))
                if number % 2:
                    puts = {b"a%d" % index: b"10" for index in range(6)} if total == b"60" else {}
                    await engine.commit(Commit(conditions, puts, clears=[(b"b", b"c")]))
                else:
                    await engine.commit(Commit(conditions, {b"b": total}, clears=[(b"a", b"b")]))

        await asyncio.gather(*(move(engines[number % 2]) for number in range(6)), clear(engines[0]))
        rows = await engines[1].scan(b"a", b"c", 100, 10_000)
        assert sum(int(value) for _, value in rows) == 60

    place.run(story())


def test_commits_that_only_compare_one_row_do_not_wait_for_each_other(place: Place) -> None:
    """One of them is held up at a key that another session has locked; the others go on."""
    import psycopg

    from flintmq.engines.postgres import _number

    async def story() -> None:
        engine = place.open()
        await engine.commit(Commit(puts={b"owner": b"me"}))
        with psycopg.connect(place.server.url()) as connection:
            connection.execute("SELECT pg_advisory_lock(hashtext(%s), %s)", (place.schema, _number(b"held")))
            held = asyncio.create_task(engine.commit(Commit([(b"owner", b"me")], {b"held": b""})))
            assert all(await asyncio.gather(*(engine.commit(Commit([(b"owner", b"me")], {b"%d" % number: b""})) for number in range(7))))
            assert not held.done()
        assert await held

    place.run(story())


def test_a_commit_that_waits_too_long_for_a_lock_did_not_happen(place: Place) -> None:
    import psycopg

    async def story() -> None:
        engine = place.open(limits=HASTY)
        await engine.connect()
        with psycopg.connect(place.server.url()) as connection:
            connection.execute("SELECT pg_advisory_lock(hashtext(%s), 0)", (place.schema,))
            with pytest.raises(Unavailable, match="statement timeout"):
                await engine.commit(Commit(puts={b"a": b""}))
        assert await engine.get([b"a"]) == [None]

    place.run(story())


# --- P3, P5 ---------------------------------------------------------------------------------------------------------------
def test_connections_that_the_server_ended_while_idle_are_replaced_unseen(place: Place) -> None:
    async def story() -> None:
        engine = place.open()
        await asyncio.gather(*(engine.commit(Commit(puts={b"%d" % number: b""})) for number in range(8)))
        await asyncio.to_thread(place.end_connections)
        await asyncio.sleep(0.1)  # the ends of the connections arrive
        assert all(await asyncio.gather(*(engine.commit(Commit(puts={b"%d" % number: b"x"})) for number in range(8))))

    place.run(story())


def test_a_commit_whose_connection_ends_has_an_unknown_outcome(place: Place) -> None:
    import psycopg

    async def story() -> None:
        engine = place.open()
        await engine.connect()
        with psycopg.connect(place.server.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(hashtext(%s), 0)", (place.schema,))
            waiting = asyncio.create_task(engine.commit(Commit(puts={b"a": b""})))
            await until(lambda: bool(connection.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchall()))
            await asyncio.to_thread(place.end_connections)
            with pytest.raises(UnknownOutcome):
                await waiting
        assert await engine.commit(Commit(puts={b"b": b""}))

    place.run(story())


@pytest.mark.parametrize(
    ("severity", "kind"), [("ERROR", Full), ("FATAL", UnknownOutcome), ("PANIC", UnknownOutcome), (None, UnknownOutcome)]
)
def test_a_full_disk_that_ends_the_server_leaves_the_outcome_open(place: Place, severity: str | None, kind: type[EngineError]) -> None:
    import psycopg

    class Failed(psycopg.errors.DiskFull):
        @property
        def diag(self) -> Any:
            return SimpleNamespace(severity_nonlocalized=severity)

    engine: Any = place.open()
    assert type(engine._error(Failed("no space left on device"), is_commit=True)) is kind
    assert type(engine._error(Failed("no space left on device"), is_commit=False)) is Unavailable


def test_a_server_that_says_nothing_after_the_login_holds_no_call_and_no_close() -> None:
    """As one that was stopped: its kernel still accepts."""
    ready = b"R\0\0\0\x08\0\0\0\0"
    for name, value in (("server_version", "15.0"), ("in_hot_standby", "off"), ("default_transaction_read_only", "off")):
        text = f"{name}\0{value}\0".encode()
        ready += b"S" + (len(text) + 4).to_bytes(4, "big") + text
    ready += b"Z\0\0\0\x05I"

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size - 4)
        writer.write(ready)
        await reader.read(-1)
        writer.close()

    async def story() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        limits = Limits(engine_postgres_request_ms=300)
        engine = open_engine(f"postgresql://u:p@127.0.0.1:{port}/d?sslmode=disable&gssencmode=disable", limits)
        with pytest.raises(Unavailable):
            await engine.commit(Commit(puts={b"a": b""}))
        events: Any = engine.watch(b"w", b"x")
        waiting = asyncio.create_task(anext(events))
        held = asyncio.create_task(engine.get([b"a"]))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(engine.close(), 5)
        with pytest.raises(Unavailable):
            await held
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        server.close()

    asyncio.run(asyncio.wait_for(story(), WAIT_S))


def test_a_standby_that_does_not_answer_makes_outcomes_unknown(place: Place) -> None:
    """By the time of the request, and when somebody ends the server's wait: the server would call both committed."""

    async def story() -> None:
        import psycopg

        engine = place.open(limits=HASTY)
        await engine.connect()
        cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        with place.setting("synchronous_standby_names", "nobody"), psycopg.connect(place.server.url(), autocommit=True) as connection:
            await until(lambda: place.server.execute("SHOW synchronous_standby_names") == [("nobody",)])
            with pytest.raises(UnknownOutcome):
                await engine.commit(Commit(puts={b"a": b""}))
            waiting = asyncio.create_task(engine.commit(Commit(puts={b"b": b""})))

            def cancelled() -> bool:
                connection.execute(cancel.encode())
                return waiting.done()

            await until(cancelled)
            with pytest.raises(UnknownOutcome, match="standby"):
                await waiting
        assert await engine.commit(Commit(puts={b"c": b""}))

    place.run(story())


def test_a_watch_says_none_when_its_connection_is_back(place: Place) -> None:
    async def story() -> None:
        engine = place.open()
        events: Any = engine.watch(b"w", b"x")
        assert await anext(events) is None
        await asyncio.to_thread(place.end_connections)
        assert await anext(events) is None
        await engine.commit(Commit(puts={b"w1": b""}))
        assert await anext(events) == {b"w1"}
        await events.aclose()

    place.run(story())


def test_commits_outside_of_watched_ranges_tell_nobody(place: Place) -> None:
    """A transaction that notifies waits for the sync of the one before."""
    import psycopg

    async def story() -> None:
        engine = place.open()
        events: Any = engine.watch(b"w", b"x")
        assert await anext(events) is None
        with psycopg.connect(place.server.url(), autocommit=True) as connection:
            connection.execute(f"LISTEN {place.schema}".encode())
            await engine.commit(Commit(puts={b"a": b"", b"x": b""}))
            await engine.commit(Commit(puts={b"w": b""}))
            assert [note.payload for note in connection.notifies(timeout=5, stop_after=1)] == [b"w".hex()]
        await events.aclose()

    place.run(story())


# --- set up ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "value"), [("synchronous_commit", "off"), ("full_page_writes", "off"), ("fsync", "off")])
def test_a_server_that_confirms_commits_it_may_lose_is_unfit_unless_the_url_allows_it(place: Place, name: str, value: str) -> None:
    async def story() -> None:
        with place.setting(name, value):
            await until(lambda: place.server.execute(f"SHOW {name}") == [(value,)])
            with pytest.raises(Unfit, match=rf"{name} is off.*allow_async=1"):
                await place.open().connect()
            await place.open("&allow_async=1").connect()

    place.run(story())


def test_local_commits_are_unfit_where_the_server_has_standbys(place: Place) -> None:
    async def story() -> None:
        await place.open().connect()
        with place.setting("synchronous_standby_names", "nobody"):
            await until(lambda: place.server.execute("SHOW synchronous_standby_names") == [("nobody",)])
            with pytest.raises(Unfit, match="synchronous_commit is local, so a failover"):
                await place.open("&options=-csynchronous_commit%3Dlocal").connect()

    place.run(story())


def test_a_server_that_takes_no_writes_is_unavailable_with_the_advice_to_take_the_primary(place: Place) -> None:
    async def story() -> None:
        with pytest.raises(Unavailable, match=r"primary|read-write|read-only"):
            await place.open("&options=-cdefault_transaction_read_only%3Don").connect()
        with pytest.raises(Unavailable, match="Connect to the primary"):
            await place.open("&options=-cdefault_transaction_read_only%3Don&target_session_attrs=any").connect()

    place.run(story())


def test_a_role_with_rights_on_the_rows_alone_can_use_them(place: Place) -> None:
    async def story() -> None:
        await place.open().connect()
        role, schema = f"r{place.schema}", place.schema
        place.server.execute(
            f"CREATE ROLE {role} LOGIN PASSWORD 'few'",
            f"GRANT USAGE ON SCHEMA {schema} TO {role}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
        )
        engine = place.open(user=role, password="few")
        events: Any = engine.watch(b"a", b"b")
        assert await anext(events) is None
        assert await engine.commit(Commit(puts={b"a": b"1"}))
        assert await anext(events) == {b"a"}
        await engine.tidy()
        await events.aclose()

    place.run(story())


def test_a_server_that_is_not_there_is_unavailable_and_its_password_in_no_text() -> None:
    async def story() -> None:
        engine = open_engine("postgresql://me:geheim@127.0.0.1:1/rows", LIMITS)
        with pytest.raises(Unavailable, match="can't be reached") as caught:
            await engine.commit(Commit(puts={b"a": b""}))
        assert "geheim" not in str(caught.value) + engine.name

    asyncio.run(story())


@pytest.mark.parametrize("more", ["schema=A", "schema=a%22b", "allow_async=yes", "nonsense=1"])
def test_parameters_that_mean_nothing_are_refused(more: str) -> None:
    with pytest.raises(ValueError, match="postgresql://host/rows") as caught:
        open_engine(f"postgresql://me:geheim@host/rows?{more}", LIMITS)
    assert "geheim" not in str(caught.value)
