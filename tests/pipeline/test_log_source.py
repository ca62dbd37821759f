"""The log source shows every record once and nothing else, of running, stopped and archived logs alike, or says why it can not."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from flintmq.arrow.log import StoreBusy, offline_lock
from flintmq.pipeline.jobs.job import LogParameters
from flintmq.pipeline.jobs.reading import LogReading
from flintmq.testing import broker as in_process
from pyspark_flintmq import log_source
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.log_options import STREAMS, LogOptions
from pyspark_flintmq.log_source import LogPartition, LogReader, PushingLogReader, log_reader, log_schema
from pyspark_flintmq.log_view import LogView, _of_snapshot, open_view, take_view
from tests.jobs.stores import broker, channel_of, consume, distributed, put, shared_busy_store
from tests.oracle.log import Damage, open_store
from tests.oracle.records import in_full
from tests.pipeline.plane import channel_of as pika_channel
from tests.pipeline.plane import source_options
from tests.support.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


@pytest.fixture
def busy() -> Path:
    return shared_busy_store()


def rows_of(reader: LogReader) -> list[Row]:
    """What Spark's tasks would get, without Spark."""
    schema = reader._options.arrow()
    found: list[Row] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert batch.schema.equals(schema)
            found += batch.to_pylist()
    return found


def read(**raw: Any) -> list[Row]:
    return rows_of(LogReader(LogOptions.parse({key: str(value) for key, value in raw.items()})))


def code_of(action: Any) -> str:
    with pytest.raises(SourceError) as error:
        action()
    assert str(error.value).startswith("FLINTMQ_") and "\n" not in str(error.value)
    return error.value.code


# --- what there is


def test_each_record_comes_once_in_any_number_of_partitions(busy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want: Counter[tuple[str, int, str]] = Counter()
    for name, one in open_store(busy).items():
        records = in_full(one.records(), one.container_size) if name == "messages" else one.records()
        want.update((name, record.lsn, record.name) for record in records if not isinstance(record, Damage))
    monkeypatch.setattr(log_source, "PARTITION_BYTES", 1)
    for count in (1, 3, 100):
        found = read(storeDir=busy, stream="records", columns="log,lsn,kind", minPartitions=count)
        assert {(row["log"], row["lsn"], row["kind"]) for row in found} == set(want)
        single = Counter((row["log"], row["lsn"], row["kind"]) for row in found if row["kind"] not in ("Message-Copy", "Acquire-Set"))
        assert max(single.values()) == 1
    reader = LogReader(LogOptions.parse({"storeDir": str(busy), "stream": "messages"}))
    # How many there are depends on how often the writer synced; it is five or so.
    containers = {lsn // 524_288 for name, lsn, _ in want if name == "messages"}
    assert len(reader.partitions()) == len(containers) > 3, "one container each, when a container is a partition's size"
    assert len(reader.partitions()) == len({part.paths for part in reader.partitions()})  # type: ignore[attr-defined]


def test_neighbouring_containers_share_a_partition_up_to_its_size() -> None:
    containers = [(number, str(number)) for number in range(1, 21)]
    mib = 1024 * 1024
    assert [len(group) for group in log_source._grouped(containers, 4 * mib, 2)] == [8, 8, 4]
    assert [len(group) for group in log_source._grouped(containers, 64 * mib, 2)] == [1] * 20
    assert [len(group) for group in log_source._grouped(containers[:4], 4 * mib, 2)] == [2, 2]
    for partitions in range(1, 30):
        groups = log_source._grouped(containers, mib, partitions)
        assert [one for group in groups for one in group] == containers


@pytest.mark.parametrize("stream", STREAMS)
def test_offline_shows_what_online_showed_row_for_row(stream: str, tmp_path: Path) -> None:
    with Broker("--flight-port", "0", "--data-dir", str(tmp_path / "store"), "--container-size", "524288") as running:
        with pika_channel(running) as channel:
            channel.queue_declare("q", durable=True)
            put(channel, "q", 40, message_id="m", headers={"a": 1})
            put(channel, "q", 30, size=20_000)
            consume(channel, "q", 20, tag="reader")
        options = LogOptions.parse({**source_options(running), "stream": stream})
        view = take_view(options)
        assert view.snapshot and view.queues == {1: ("/", "q")}
        online = rows_of(LogReader(replace(options, view=view.text())))
        assert rows_of(LogReader(options)) == online, "a snapshot of its own"
        with pika_channel(running) as channel:
            put(channel, "q", 5)
        assert rows_of(LogReader(replace(options, view=view.text()))) == online, "a view does not change"
        with pytest.raises(SourceError, match="FLINTMQ_STORE_BUSY"):
            take_view(LogOptions.parse({"storeDir": str(tmp_path / "store"), "stream": stream}))
    ends = {"tx": ("transactions",), "records": ("messages", "transactions")}.get(stream, ("messages",))
    offline: list[Row] = []
    for log in ends:
        limits = {} if stream == "consumers" else {"endingLsn": view.logs[log].end}
        offline += read(storeDir=tmp_path / "store", stream=stream, log=log, **limits)
    assert offline == online
    assert bool(online) == (stream != "tx")


def test_a_kept_view_ends_its_snapshot(plane_broker: Broker) -> None:
    raw = {**source_options(plane_broker), "stream": "records", "snapshotTtl": "10"}
    options = LogOptions.parse(raw)
    with contextlib.closing(options.connection.open()) as plane:
        before = plane.status()
        with open_view(raw) as view:
            assert view.kept
            parts = LogReader(replace(options, view=view.text())).partitions()
            assert all(part.snapshot == "" for part in parts), "tasks need not keep it"  # type: ignore[attr-defined]
            assert plane.log_extend(view.snapshot, 10)["id"] == view.snapshot
        with pytest.raises(Exception, match="NOT_FOUND"):
            plane.log_extend(view.snapshot, 10)
        assert before["version"]
        # A task whose snapshot is gone reads on: what it reads is checked.
        reader = LogReader(options)
        parts = [replace(part, snapshot="0" * 32) for part in reader.partitions()]  # type: ignore[type-var]
        assert sum(batch.num_rows for part in parts for batch in reader.read(part)) > 0


# --- what is wanted


def test_times_lsns_and_queues_choose_exactly_their_rows(busy: Path) -> None:
    everything = read(storeDir=busy, stream="records", log="messages")
    times = sorted(row["time"] for row in everything)
    low, high = times[len(times) // 3], times[2 * len(times) // 3]
    found = read(storeDir=busy, stream="records", log="messages", startingTimestamp=low.isoformat(), endingTimestamp=high.isoformat())
    assert found == [row for row in everything if low <= row["time"] < high] != []
    lsns = sorted(row["lsn"] for row in everything)
    first, end = lsns[100], lsns[-100]
    found = read(storeDir=busy, stream="records", log="messages", startingLsn=first, endingLsn=end)
    assert found == [row for row in everything if first <= row["lsn"] < end]
    queues = take_view(LogOptions.parse({"storeDir": str(busy)})).queues
    work = next(number for number, names in queues.items() if names[1] == "work")
    want = [row for row in everything if row["queue_id"] == work]
    assert read(storeDir=busy, stream="records", log="messages", queue="work") == want != []
    assert read(storeDir=busy, stream="records", log="messages", queueIds=work) == want
    narrow = read(storeDir=busy, stream="records", log="messages", queue="work", columns="kind")
    assert narrow == [{"kind": row["kind"]} for row in want], "a column that a filter needs is not shown"
    messages = read(storeDir=busy, stream="messages", columns="lsn,published_time,copy", body="none")
    moment = sorted(row["published_time"] for row in messages)[300]
    found = read(storeDir=busy, stream="messages", columns="lsn,published_time,copy", endingTimestamp=moment.isoformat())
    assert found == [row for row in messages if row["published_time"] < moment]
    sets = read(storeDir=busy, stream="tx", queue="fan2")
    assert [row["state"] for row in sets] == ["committed", "prepared"]
    assert read(storeDir=busy, stream="tx", endingTimestamp="2001-01-01") == []


def test_containers_of_another_time_are_not_read(busy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "CLOCK_SLACK_US", 0)
    everything = read(storeDir=busy, stream="records", log="messages")
    last = max(row["time"] for row in everything if row["kind"] == "Message-Start")
    raw = {"storeDir": str(busy), "stream": "records", "log": "messages", "startingTimestamp": last.isoformat()}
    options = LogOptions.parse(raw)
    parts = LogReader(options).partitions()
    assert sum(len(part.paths) for part in parts) < 5  # type: ignore[attr-defined]
    assert rows_of(LogReader(options)) == [row for row in everything if row["time"] >= last]
    later = {**raw, "startingTimestamp": (last + timedelta(days=9)).isoformat(), "endingTimestamp": (last + timedelta(days=10)).isoformat()}
    assert rows_of(LogReader(LogOptions.parse(later))) == []


def test_bodies_are_cut_or_left_out(busy: Path) -> None:
    whole = read(storeDir=busy, stream="messages", columns="lsn,body")
    assert max(len(row["body"]) for row in whole) > 40_000, "longer than one record"
    cut = read(storeDir=busy, stream="messages", columns="lsn,body", body="prefix:3")
    assert cut == [{"lsn": row["lsn"], "body": row["body"][:3]} for row in whole]
    assert {row["body"] for row in read(storeDir=busy, stream="messages", columns="body", body="none")} == {b""}
    assert {row["body"] for row in read(storeDir=busy, stream="records", columns="body")} == {None}
    starts = read(storeDir=busy, stream="records", body="full", columns="body,kind,lsn")
    assert {row["lsn"]: row["body"] for row in starts if row["kind"] == "Message-Start"}.items() <= {
        row["lsn"]: row["body"] for row in whole
    }.items()


def test_consumers_are_the_names_of_the_log(busy: Path) -> None:
    found = read(storeDir=busy, stream="consumers")
    assert {row["tag"] for row in found} >= {"one", "two", "mover", "fan-reader", "leveller", "reader"}
    assert {row["group"] for row in found} == {"", "readers", "spark"}
    settled = {row["consumer_id"] for row in read(storeDir=busy, stream="records", columns="consumer_id") if row["consumer_id"]}
    assert {row["consumer_id"] for row in found} <= settled | {row["consumer_id"] for row in found}
    # Two channels got messages with basic.get, which names nobody; which numbers they are depends on who came before.
    assert len(settled - {row["consumer_id"] for row in found}) == 2


LSNS = st.integers(520_000, 3_200_000)
TIMES = st.integers(0, 3_000).map(lambda ms: datetime.now(UTC) - timedelta(milliseconds=ms * 100))
FILTERS = st.one_of(
    st.builds(
        lambda kind, value: kind(("lsn",), value),
        st.sampled_from((EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)),
        LSNS,
    ),
    st.builds(
        lambda kind, value: kind(("time",), value), st.sampled_from((GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)), TIMES
    ),
    st.sampled_from(
        (EqualTo(("log",), "messages"), EqualTo(("log",), "transactions"), In(("queue_id",), (3, 10)), EqualTo(("kind",), "Commit"))
    ),
)


def _passes(row: Row, one: Any) -> bool:
    value = row[one.attribute[0]]
    if value is None:
        return False
    if isinstance(one, In):
        return value in one.value
    compare = {EqualTo: "__eq__", GreaterThan: "__gt__", GreaterThanOrEqual: "__ge__", LessThan: "__lt__", LessThanOrEqual: "__le__"}
    return bool(getattr(value, compare[type(one)])(one.value))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(FILTERS, min_size=1, max_size=3))
def test_pushed_filters_never_lose_a_row(busy: Path, filters: list[Any]) -> None:
    options = LogOptions.parse({"storeDir": str(busy), "stream": "records", "columns": "lsn,log,time,queue_id,kind,position"})
    reader = PushingLogReader(options)
    assert list(reader.pushFilters(filters)) == filters, "Spark checks each row again"
    found = rows_of(reader)
    everything = rows_of(LogReader(options))
    assert [row for row in found if all(_passes(row, one) for one in filters)] == [
        row for row in everything if all(_passes(row, one) for one in filters)
    ]
    assert len(found) <= len(everything)


def test_only_the_reader_that_is_asked_for_takes_filters(busy: Path) -> None:
    raw = {"storeDir": str(busy), "stream": "records"}
    reader = log_reader(log_schema(raw), raw)
    assert type(reader) is LogReader
    assert type(reader).pushFilters is not PushingLogReader.pushFilters


# --- store and archive


def test_store_and_archive_together_are_the_whole_log(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    with broker(store) as running, channel_of(running) as channel:
        channel.queue_declare("long", durable=True)
        put(channel, "long", 8, size=400_000)  # every message is in two containers
    want = read(storeDir=store, stream="messages")
    records = read(storeDir=store, stream="records", log="messages")
    containers = sorted((store / "messages").glob("*.flog"))
    (archive / "messages").mkdir(parents=True)
    for path in containers[: len(containers) // 2]:
        shutil.move(path, archive / "messages" / path.name)
    assert read(storeDir=store, archiveDir=archive, stream="messages") == want
    assert read(storeDir=store, archiveDir=archive, stream="records", log="messages") == records
    assert len(read(storeDir=store, stream="messages", mode="PERMISSIVE")) < len(want)
    lsns = {row["lsn"] for row in read(archiveDir=archive, stream="records", log="messages")}
    assert lsns and lsns < {row["lsn"] for row in records}
    other = tmp_path / "other"
    with broker(other):
        pass
    assert code_of(lambda: read(storeDir=other, archiveDir=archive, stream="messages")) == "OPTION_VALUE"


# --- what goes wrong


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A store with three times ten messages, cleanly stopped each time."""
    for _ in range(3):
        with broker(tmp_path / "store") as running, channel_of(running) as channel:
            channel.queue_declare("q", durable=True)
            put(channel, "q", 10)
    return tmp_path / "store"


def _last_message(store: Path) -> tuple[Path, int]:
    """Container and offset of the last Message-Start."""
    row = [
        row
        for row in read(storeDir=store, stream="records", log="messages", columns="lsn,kind,container")
        if row["kind"] == "Message-Start"
    ][-1]
    return store / "messages" / f"{row['container']:020d}.flog", row["lsn"] % 524_288


def test_damage_is_an_error_or_counted(small: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, _ = _last_message(small)
    rows = read(storeDir=small, stream="records", log="messages", columns="lsn,kind")
    first = [row for row in rows if row["kind"] != "Queue-Delivered"][3]
    everything = read(storeDir=small, stream="records", log="messages")
    data = bytearray(path.read_bytes())
    data[first["lsn"] % 524_288 + 12] ^= 1
    path.write_bytes(data)
    assert code_of(lambda: read(storeDir=small, stream="records", log="messages")) == "LOG_DAMAGED"
    found = read(storeDir=small, stream="records", log="messages", mode="PERMISSIVE")
    assert found == [row for row in everything if row["lsn"] != first["lsn"]]
    assert "1 damaged" in caplog.text


def test_a_torn_tail_is_left_out_with_a_warning(small: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, offset = _last_message(small)
    everything = read(storeDir=small, stream="records", log="messages", columns="lsn")
    data = bytearray(path.read_bytes())
    block = data.rindex(b"FBLK", 0, offset)
    # The block with the last message, and what was written after it, never got whole: so nobody told it durable.
    data[block + 64 : block + 80] = bytes(16)
    following = data.find(b"FBLK", block + 1)
    while following >= 0:
        data[following : following + 64] = bytes(64)
        following = data.find(b"FBLK", following + 1)
    path.write_bytes(data)
    found = read(storeDir=small, stream="records", log="messages", columns="lsn")
    assert found == everything[: len(found)]
    assert len(found) < len(everything)
    assert "torn tail" in caplog.text


def test_a_container_that_is_gone_or_another_by_now_gives_no_row(small: Path) -> None:
    reader = LogReader(LogOptions.parse({"storeDir": str(small), "stream": "records", "log": "messages"}))
    (part,) = reader.partitions()
    assert isinstance(part, LogPartition)
    path = Path(part.paths[0][1])
    data = path.read_bytes()
    path.unlink()
    assert code_of(lambda: list(reader.read(part))) == "LOG_GONE"
    recycled = bytearray(data)
    recycled[40] += 1
    from tests.support import logbytes as lb

    recycled[508:512] = lb.crc32c(bytes(recycled[:508])).to_bytes(4, "little")
    path.write_bytes(recycled)
    assert code_of(lambda: list(reader.read(part))) == "LOG_GONE"
    path.write_bytes(data)
    assert list(reader.read(part))
    assert code_of(lambda: list(reader.read(replace(part, uuid="00" * 16)))) == "LOG_GONE"
    gone = replace(part, directory=str(small / "elsewhere"), paths=((1, str(small / "elsewhere" / path.name)),))
    assert code_of(lambda: list(reader.read(gone))) == "LOG_NOT_VISIBLE"
    assert list(reader.read(None)) == []  # type: ignore[arg-type]


def test_a_store_that_a_broker_has_is_refused_and_kept_from_brokers_while_it_is_read(small: Path) -> None:
    reader = LogReader(LogOptions.parse({"storeDir": str(small), "stream": "records"}))
    batches = reader.read(reader.partitions()[0])
    next(batches)
    with pytest.raises(BaseException) as refused, broker(small):
        pass
    assert not isinstance(refused.value, AssertionError)
    batches.close()  # type: ignore[attr-defined]
    with broker(small):
        assert code_of(lambda: reader.partitions()) == "STORE_BUSY"
        with pytest.raises(StoreBusy), offline_lock(small):
            pass


def test_a_store_that_is_not_here_is_one_clear_error(small: Path, tmp_path: Path) -> None:
    class Snapshot:
        id = "x"
        queues: dict[str, Any] = {}

        def __init__(self, directory: Path, uuid: str) -> None:
            self.store = {"directory": str(directory), "uuid": uuid, "container_size": 524_288}
            facts = {"base": 0, "end": 1_000_000, "container_size": 524_288, "containers": [1]}
            self.logs = {"messages": facts, "transactions": facts}

    options = LogOptions.parse({"stream": "records"})
    uuid = take_view(LogOptions.parse({"storeDir": str(small)})).uuid
    assert _of_snapshot(options, Snapshot(small, uuid)).uuid == uuid
    assert code_of(lambda: _of_snapshot(options, Snapshot(tmp_path / "none", uuid))) == "LOG_NOT_VISIBLE"
    assert code_of(lambda: _of_snapshot(options, Snapshot(small, "00" * 16))) == "LOG_NOT_VISIBLE"
    assert code_of(lambda: read(storeDir=tmp_path / "none", stream="tx")) == "NO_STORE"
    assert code_of(lambda: read(host="127.0.0.1", flightPort=1, timeout=1, stream="tx")) == "UNREACHABLE"


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ({"stream": "record"}, "OPTION_VALUE"),
        ({"stream": "records", "storDir": "x"}, "OPTION_UNKNOWN"),
        ({"stream": "records", "log": "pages"}, "OPTION_VALUE"),
        ({"stream": "tx", "log": "messages"}, "OPTION_VALUE"),
        ({"stream": "records", "columns": "lsn,kindd"}, "OPTION_VALUE"),
        ({"stream": "records", "columns": " , "}, "OPTION_VALUE"),
        ({"stream": "records", "body": "half"}, "OPTION_VALUE"),
        ({"stream": "records", "mode": "DROP"}, "OPTION_VALUE"),
        ({"stream": "records", "startingLsn": "5"}, "OPTION_MISSING"),
        ({"stream": "messages", "startingLsn": "-5"}, "OPTION_VALUE"),
        ({"stream": "messages", "queue": "q"}, "OPTION_VALUE"),
        ({"stream": "records", "queue": "q", "queues": "r"}, "OPTION_VALUE"),
        ({"stream": "records", "storeDir": "x", "host": "y"}, "OPTION_VALUE"),
        ({"stream": "records", "startingTimestamp": "yesterday"}, "OPTION_VALUE"),
        ({"stream": "records", "minPartitions": "0"}, "OPTION_VALUE"),
        ({"stream": "records", "snapshotTtl": "1"}, "OPTION_VALUE"),
        ({"stream": "records", "queueIds": "a"}, "OPTION_VALUE"),
    ],
)
def test_wrong_options_are_refused(raw: dict[str, str], code: str) -> None:
    assert code_of(lambda: log_schema(raw)) == code


def test_each_log_has_containers_of_a_size_of_its_own(tmp_path: Path) -> None:
    """Those of the transaction log are smaller than the default of messages: all of it is read, whole or by LSN."""
    with in_process.Broker(data_dir=str(tmp_path / "store"), container_size=4 * 1024 * 1024) as running:
        with channel_of(running) as channel:
            channel.queue_declare("work", durable=True)
            channel.queue_declare("jobs", durable=True)
            put(channel, "work", 5)
        for name, end in ((b"one", "commit"), (b"two", "rollback"), (b"three", "prepare")):
            distributed(running, name, end)
    view = take_view(LogOptions.parse({"storeDir": str(tmp_path / "store")}))
    assert view.logs["transactions"].size < view.logs["messages"].size
    states = [row["state"] for row in read(storeDir=tmp_path / "store", stream="tx")]
    assert states == ["committed", "rolled back", "prepared"]
    assert LogReading(None, LogParameters(store_dir=str(tmp_path / "store"))).transactions().num_rows == 3  # type: ignore[arg-type]
    options = {"storeDir": tmp_path / "store", "stream": "records", "log": "transactions", "columns": "lsn,kind"}
    rows = read(**options)
    assert len(rows) > 5
    for row in rows:
        assert read(**options, startingLsn=row["lsn"], endingLsn=row["lsn"] + 1) == [row]


def test_directories_are_those_of_the_driver(busy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Executors run in other directories than the driver, where relative paths were meant."""
    monkeypatch.chdir(busy.parent)
    monkeypatch.setenv("HOME", str(busy.parent))
    want = read(storeDir=busy, stream="records", columns="lsn,log")
    for text in (busy.name, f"./{busy.name}", f"~/{busy.name}"):
        monkeypatch.chdir(busy.parent)
        reader = LogReader(LogOptions.parse({"storeDir": text, "stream": "records", "columns": "lsn,log"}))
        partitions = reader.partitions()
        monkeypatch.chdir(tmp_path)
        assert [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()] == want


def test_a_view_survives_its_text_and_a_wrong_text_is_refused(busy: Path) -> None:
    view = take_view(LogOptions.parse({"storeDir": str(busy)}))
    assert LogView.of(view.text()) == view
    for text in ("", "[]", "{}", "{", '{"logs": {}, "queues": {}}'):
        assert code_of(lambda text=text: LogView.of(text)) == "OPTION_VALUE"
    assert code_of(lambda: read(storeDir=busy, stream="records", queue="nobody")) == "QUEUE_MISSING"


# --- through Spark


@pytest.fixture
def log_frame(spark: SparkSession, busy: Path) -> Any:
    def frame(**options: str) -> Any:
        return spark.read.format("flintmq").options(storeDir=str(busy), **options).load()

    return frame


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_spark_sees_every_stream_with_its_types(log_frame: Any, busy: Path) -> None:
    for stream in STREAMS:
        want = read(storeDir=busy, stream=stream)
        frame = log_frame(stream=stream)
        assert frame.columns == [name for name, _, _ in STREAMS[stream]]
        assert frame.count() == len(want)
    rows = log_frame(stream="tx").where("sets is not null").select("sets").collect()
    assert {"queue_id": 2, "first": 1, "count": 4} in [one.asDict() for row in rows for one in row["sets"]]
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="FLINTMQ_OPTION_VALUE: option 'columns': there is no column 'kid'"):
        log_frame(stream="records", columns="kid")


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_spark_pushes_filters_and_keeps_their_meaning(log_frame: Any, busy: Path, pushdown: None) -> None:
    everything = read(storeDir=busy, stream="records", log="messages", columns="lsn,queue_id,kind,time")
    middle = everything[len(everything) // 2]
    found = log_frame(stream="records", log="messages").where(f"lsn >= {middle['lsn']} and queue_id in (3, 10) and kind != 'Name'").count()
    assert found == sum(row["lsn"] >= middle["lsn"] and row["queue_id"] in (3, 10) and row["kind"] != "Name" for row in everything)
    moment = middle["time"].strftime("%Y-%m-%d %H:%M:%S.%f")
    assert log_frame(stream="records", log="messages").where(f"time < timestamp'{moment}'").count() == sum(
        row["time"] < middle["time"] for row in everything
    )


# --- messages that the log has more than once


def _first_of_each(rows: list[Row]) -> list[Row]:
    """What the source must show of all rows, in the log's order."""
    found: dict[int, Row] = {}
    for row in rows:
        found.setdefault(row["lsn"], row)
    return list(found.values())


def test_a_message_is_one_row_whatever_the_log_still_has_of_it(busy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that stay are copied forward: 814 rows for 726 messages. Of some the log has the original, of some only copies."""
    monkeypatch.setattr(log_source, "PARTITION_BYTES", 1)
    wanted = {"stream": "messages", "columns": "lsn,copy,message_id,body"}
    everything = read(storeDir=busy, copies="true", **wanted)
    assert sum(row["copy"] for row in everything) > 50
    assert read(storeDir=busy, **wanted) == _first_of_each(everything)
    assert read(storeDir=busy, stream="messages", columns="body") == [{"body": row["body"]} for row in _first_of_each(everything)]
    containers = sorted((busy / "messages").glob("*.flog"))
    only_copies = 0
    for cut in range(1, len(containers), 3):
        part = tmp_path / str(cut) / "messages"
        part.mkdir(parents=True)
        for path in containers[cut:]:
            shutil.copy(path, part)
        for mode in ("FAILFAST", "PERMISSIVE"):
            given = {"archiveDir": part.parent, "mode": mode, "minPartitions": 3, **wanted}
            rows = read(copies="true", **given)
            found = read(**given)
            assert found == _first_of_each(rows)
            only_copies += sum(row["copy"] for row in found)
    assert only_copies > 10


def test_an_original_that_cannot_be_read_hides_no_copy(busy: Path, tmp_path: Path) -> None:
    rows = read(storeDir=busy, stream="messages", columns="lsn,copy", copies="true")
    lost = next(row["lsn"] for row in rows if row["copy"])
    store = tmp_path / "store"
    shutil.copytree(busy, store)
    size = (next(iter((store / "messages").glob("*.flog")))).stat().st_size
    path = store / "messages" / f"{lost // size:020d}.flog"
    data = bytearray(path.read_bytes())
    data[lost % size + 30] ^= 255
    path.write_bytes(data)
    found = read(storeDir=store, stream="messages", columns="lsn,copy", mode="PERMISSIVE")
    assert [row["copy"] for row in found if row["lsn"] == lost] == [True]
    assert len(found) == len({row["lsn"] for row in found})


def test_copies_are_of_messages(busy: Path) -> None:
    with pytest.raises(SourceError, match="option 'copies' goes with stream=messages"):
        LogOptions.parse({"storeDir": str(busy), "stream": "records", "copies": "true"})
