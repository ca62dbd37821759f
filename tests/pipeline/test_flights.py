"""The main job notices every wrong result, and publishes each flight of the data set exactly as the file has it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pandas")

from examples.flights import dataset
from examples.flights import job as flights
from examples.flights.dataset import CarrierFigures, Message
from examples.flights.local_broker import Place
from examples.flights.progress import Progress
from examples.flights.publish import Publisher, declare_empty, drain, queue_state
from flintmq.clock import ManualClock
from flintmq.errors import OperatorError
from flintmq.pipeline.jobs.failures import one_line
from tests.support.broker import unique

GOOD = [CarrierFigures("AA", "American", 3, 1.5), CarrierFigures("ZZ", "Zero", 1, None)]


def test_equal_figures_have_no_differences() -> None:
    assert flights.differences(GOOD, [replace(GOOD[0], mean_arr_delay=1.5 + 1e-12), GOOD[1]]) == []


@pytest.mark.parametrize(
    "wrong",
    [
        GOOD[:1],
        [*GOOD, CarrierFigures("XX", "Extra", 1, 0.0)],
        [replace(GOOD[0], flights=4), GOOD[1]],
        [replace(GOOD[0], mean_arr_delay=1.5001), GOOD[1]],
        [replace(GOOD[0], mean_arr_delay=None), GOOD[1]],
        [GOOD[0], replace(GOOD[1], mean_arr_delay=0.0)],
        [*GOOD, GOOD[0]],
        [replace(GOOD[0], name="Other"), GOOD[1]],
    ],
)
def test_any_difference_is_named(wrong: list[CarrierFigures]) -> None:
    (line,) = flights.differences(wrong, GOOD)
    assert line[:2] in {"AA", "ZZ", "XX"}


def test_each_flight_is_published_as_the_file_has_it() -> None:
    table = dataset.load_flights(25_000)
    got = list(dataset.messages(table))
    assert [m.message_id for m in got] == [str(i) for i in range(25_000)]
    first = json.loads(got[0].body)
    assert got[0].routing_key == "EWR.UA"
    assert (first["dep_time"], first["arr_delay"], first["carrier"], first["tailnum"]) == (517, 11, "UA", "N14228")
    cancelled = next(i for i, missing in enumerate(table["dep_time"].isna()) if missing)
    body = json.loads(got[cancelled].body)
    assert body["dep_time"] is None and body["arr_delay"] is None
    assert set(first) == {column.split()[0] for column in flights.FLIGHT_COLUMNS.split(", ")}


def test_figures_count_all_flights_and_average_those_that_arrived() -> None:
    table = dataset.load_flights(2_000)
    rows = dataset.figures(table, dataset.load_airlines())
    assert sum(row.flights for row in rows) == 2_000
    assert [row.name for row in rows] == sorted(row.name for row in rows)
    delays = [json.loads(m.body)["arr_delay"] for m in dataset.messages(table) if m.routing_key.endswith(".UA")]
    delays = [d for d in delays if d is not None]
    united = next(row for row in rows if row.carrier == "UA")
    assert united.mean_arr_delay == pytest.approx(sum(delays) / len(delays))
    assert united.flights == int((table["carrier"] == "UA").sum()) > len(delays)


def test_urls() -> None:
    options = flights.source_options("amqp://u%40x:p%2F@host:99/%2F", "q", Path("/s"))
    assert (options["host"], options["port"], options["user"], options["password"], options["vhost"]) == ("host", "99", "u@x", "p/", "/")
    assert flights.source_options("amqp://h/v", "q", Path("/s"))["vhost"] == "v"
    for bad in ("http://h", "amqp://", "amqp://h:port/"):
        with pytest.raises(OperatorError) as error:
            flights.source_options(bad, "q", Path("/s"))
        assert error.value.exit_code == 64


def test_our_line_is_found_in_a_long_trace() -> None:
    trace = "org.apache.spark.SparkException: x\n  at java\nE   pyspark_flintmq.errors.SourceError: FLINTMQ_QUEUE_BUSY: stop it\n  at"
    assert one_line(trace) == "FLINTMQ_QUEUE_BUSY: stop it"
    assert one_line("first\nsecond") == "first"


def test_where_the_data_plane_is() -> None:
    """The URL's host and login with the port of the data plane; a broker without one is an error that says so."""
    options = flights.plane_options(Place("amqp://u:p@host/v", 99))
    assert options == {"host": "host", "flightPort": "99", "user": "u", "password": "p", "vhost": "v"}
    with pytest.raises(OperatorError, match="no data plane") as error:
        flights.plane_options(Place("amqp://host/", None))
    assert error.value.exit_code == 69


def test_a_queue_of_figures_must_be_empty_before_and_is_after(amqp_url: str, channel: Any) -> None:
    """What is read back is what this run wrote, each once, in order."""
    name = unique("figures")
    declare_empty(amqp_url, name)
    for number in range(3):
        channel.basic_publish("", name, b"%d" % number)
    with pytest.raises(OperatorError, match="already holds 3 messages"):
        declare_empty(amqp_url, name)
    assert drain(amqp_url, name) == [b"0", b"1", b"2"]
    declare_empty(amqp_url, name)
    channel.queue_delete(name)


def test_only_an_own_directory_is_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years")
    done = CliRunner().invoke(flights.flights, ["--out", str(precious), "--url", "amqp://127.0.0.1:1/"])
    assert done.exit_code == 64
    assert (precious / "thesis.txt").read_text() == "years"


class Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_bar_on_a_terminal_and_sparse_lines_elsewhere(terminal: bool) -> None:
    screen, clock = Screen(terminal), ManualClock()
    progress = Progress("sending", 100, screen, clock)
    for i in range(100):
        clock.advance(ms=200)
        progress.show(i + 1)
    progress.end("done")
    shown = screen.getvalue()
    assert ("[####" in shown) == terminal
    assert shown.count("\r") == (101 if terminal else 0)
    assert shown.count("\n") == (1 if terminal else 5)
    assert shown.endswith("100 of 100, 5/s, done\n")


def some(count: int, key: str = "JFK.AA") -> list[Message]:
    return [Message(key, str(i), b"%d" % i) for i in range(count)]


def test_publishing_returns_when_all_is_confirmed_and_in_order(amqp_url: str, channel: Any) -> None:
    name = unique("flights")
    seen: list[int] = []
    try:
        assert Publisher(amqp_url, name, name, iter(some(9_000)), seen.append).run() == 9_000
        assert seen[-1] == 9_000
        assert queue_state(amqp_url, name) == (9_000, 0)
        got = [channel.basic_get(name, auto_ack=True) for _ in range(50)]
        assert [body for _, _, body in got] == [b"%d" % i for i in range(50)]
        assert {method.routing_key for method, _, _ in got} == {"JFK.AA"}
        with pytest.raises(OperatorError, match="already holds") as error:
            Publisher(amqp_url, name, name, iter(some(1)), seen.append).run()
        assert error.value.exit_code == 69
    finally:
        channel.queue_delete(name)
        channel.exchange_delete(name)


def test_no_messages_is_no_error(amqp_url: str, channel: Any) -> None:
    name = unique("flights")
    assert Publisher(amqp_url, name, name, iter(()), lambda _: None).run() == 0
    channel.queue_delete(name)
    channel.exchange_delete(name)


def test_a_broker_that_is_not_there_is_one_clear_error() -> None:
    with pytest.raises(OperatorError, match=r"cannot connect to 127\.0\.0\.1:1") as error:
        Publisher("amqp://guest:guest@127.0.0.1:1/%2F", "x", "x", iter(()), lambda _: None).run()
    assert error.value.exit_code == 69
