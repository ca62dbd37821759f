"""`flintmq pipeline` says in one line and an exit code what goes wrong, and shows and decides what the broker knows of readers."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

pytest.importorskip("pyspark")

from flintmq.cli.main import main
from flintmq.cli.pipeline_run import BatchLines
from flintmq.flight.client import DataPlane
from flintmq.pipeline.jobs.queries import BatchReport
from tests.pipeline.plane import bodies_left, channel_of, flight_port, publish, ready
from tests.support.broker import Broker, unique

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def flintmq(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flintmq", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as leave:
            main()
        out, err = capsys.readouterr()
        return int(leave.value.code or 0), out, err

    return run


@pytest.fixture
def at(plane_broker: Broker) -> list[str]:
    """Options that say which broker."""
    return ["--flight-port", str(flight_port(plane_broker)), "--timeout", "30"]


def one_line(err: str) -> str:
    lines = err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("flintmq: ") and "Traceback" not in err, err
    return lines[0]


@pytest.fixture
def prepared(plane_broker: Broker) -> tuple[str, str]:
    """(subscription, queue) of a query that was killed in the middle of its first batch of three of four messages."""
    queue, name = unique("cli"), unique("sub")
    publish(plane_broker, queue, [b"%d" % n for n in range(4)])
    with DataPlane(plane_broker.host, flight_port(plane_broker)) as plane:
        sub = plane.sub_open(name, [queue])
        plane.sub_acquire(sub.sub_id, sub.epoch, 1, max_messages=3, max_bytes=1_000_000)
        plane.sub_plan(sub.sub_id, sub.epoch, 1, 1)
    return name, queue


# --- status, reset ----------------------------------------------------------------------------------------------------------


def test_status_shows_how_far_readers_and_writers_are(flintmq: Run, at: list[str], plane_broker: Broker, prepared: tuple[str, str]) -> None:
    """Queues, epoch, committed, the prepared batch and its age, what waits; scopes; as a table and as JSON."""
    name, queue = prepared
    with DataPlane(plane_broker.host, flight_port(plane_broker)) as plane:
        scope = unique("scope")
        begun = plane.stage_begin(scope, plane.scope_open(), 7)
        plane.stage_prepare(begun.stage_id or "")
    code, out, _ = flintmq("pipeline", "status", *at, "--json")
    assert code == 0
    found = json.loads(out)
    (one,) = [one for one in found["subscriptions"] if one["name"] == name]
    assert (one["queues"], one["epoch"], one["committed"], one["prepared"], one["prepared_messages"]) == ([queue], 1, 0, 1, 3)
    assert one["behind_messages"] == 1 and one["prepared_age_ms"] >= 0
    (writer,) = [one for one in found["scopes"] if one["scope"] == scope]
    assert writer["committed"] is None and writer["prepared"] == 1
    code, out, _ = flintmq("pipeline", "status", *at)
    (line,) = [line for line in out.splitlines() if line.startswith(name)]
    assert line.split()[1:5] == [queue, "1", "0", "3,"]
    assert any(line.startswith(scope) for line in out.splitlines())


@pytest.mark.parametrize(("action", "left", "known"), [("redeliver", 4, True), ("commit", 1, True), ("delete", 4, False)])
def test_reset_decides_a_batch(
    flintmq: Run, at: list[str], plane_broker: Broker, prepared: tuple[str, str], action: str, left: int, known: bool
) -> None:
    """Only with --yes where nobody can be asked, and only with one of the three; what was given back is flagged as redelivered."""
    name, queue = prepared
    code, _, err = flintmq("pipeline", "reset", name, f"--{action}", "--may-duplicate", *at)
    assert code == 64 and "--yes" in one_line(err)
    assert flintmq("pipeline", "reset", name, "--yes", *at)[0] == 64
    if action != "commit":
        code, _, err = flintmq("pipeline", "reset", name, f"--{action}", "--yes", *at)
        assert code == 75 and "--may-duplicate" in one_line(err)
    assert ready(plane_broker, queue) == 1
    code, out, _ = flintmq("pipeline", "reset", name, f"--{action}", "--may-duplicate", "--yes", *at)
    assert code == 0 and out.startswith(f"{name}: 3 messages")
    assert ready(plane_broker, queue) == left
    names = [one["name"] for one in json.loads(flintmq("pipeline", "status", *at, "--json")[1])["subscriptions"]]
    assert (name in names) is known
    if left == 4:
        assert [body for body, _ in bodies_left(plane_broker, queue)] == [b"0", b"1", b"2", b"3"]


def test_reset_of_a_subscription_that_there_is_not(flintmq: Run, at: list[str]) -> None:
    code, _, err = flintmq("pipeline", "reset", "nobody", "--commit", "--yes", *at)
    assert code == 69 and one_line(err).startswith("flintmq: FLINTMQ_NOT_FOUND: ")


def test_forget_takes_scopes_by_name_or_by_age(flintmq: Run, at: list[str], plane_broker: Broker) -> None:
    """Queries and writes apart; only with --yes where nobody can be asked; a name that is not there changes nothing."""
    names = {kind: unique(kind) for kind in ("query", "write")}
    with DataPlane(plane_broker.host, flight_port(plane_broker)) as plane:
        for kind, name in names.items():
            begun = plane.stage_begin(name, plane.scope_open(), 0, kind=kind)
            plane.stage_prepare(begun.stage_id or "")

    def there() -> set[str]:
        found = json.loads(flintmq("pipeline", "status", *at, "--json")[1])["scopes"]
        return {one["scope"] for one in found} & set(names.values())

    assert flintmq("pipeline", "forget", names["query"], *at)[0] == 64
    assert flintmq("pipeline", "forget", "--yes", *at)[0] == flintmq("pipeline", "forget", "x", "--kind", "write", *at)[0] == 64
    code, _, err = flintmq("pipeline", "forget", names["query"], unique("none"), "--yes", *at)
    assert code == 69 and "there is no scope none-" in one_line(err)
    assert flintmq("pipeline", "forget", "--unused-days", "1", "--yes", *at)[0] == 0
    assert there() == set(names.values())
    code, out, _ = flintmq("pipeline", "forget", "--unused-days", "0", "--kind", "write", "--yes", "--json", *at)
    assert code == 0 and names["write"] in json.loads(out)["forgotten"] and there() == {names["query"]}
    assert flintmq("pipeline", "forget", names["query"], "--yes", *at)[:2] == (0, f"forgotten: scope {names['query']}\n")
    assert there() == set()


# --- run: errors before Spark -----------------------------------------------------------------------------------------------


def test_jobs_are_listed(flintmq: Run) -> None:
    code, out, _ = flintmq("pipeline", "list")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == [
        *("archive", "replay", "lifecycle", "depth", "fairness", "audit"),
    ]


@pytest.mark.parametrize("name", ["archive", "replay", "lifecycle", "depth", "fairness", "audit"])
def test_each_job_says_what_it_takes(flintmq: Run, name: str) -> None:
    """--help names its parameters and those of the command, and shows no password."""
    code, out, _ = flintmq("pipeline", "run", name, "--help")
    assert code == 0 and "--since" in out and "--dry-run" in out
    assert " ".join(out.split()).count("[default: guest]") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["archivee", "--out", "x"], 64, "did you mean 'archive'"),
        (["archive", "--queue", "q"], 64, "--out is needed"),
        (["archive", "--out", "{tmp}/x"], 64, "give --queue"),
        (["archive", "--out", "{tmp}/x", "--queue", "q", "--max-messages", "0"], 64, "--max-messages is 1 to"),
        (["replay", "--archive", "{tmp}"], 64, "give one of --to-queue"),
        (["audit", "--store-dir", "{tmp}/none"], 69, "FLINTMQ_NO_STORE"),
        (["depth", "--follow"], 64, "has an end"),
        (["archive", "--out", "{tmp}/x", "--queue", "q", "--flight-port", "1", "--timeout", "1"], 69, "FLINTMQ_UNREACHABLE"),
        (["archive", "--out", "{tmp}/x", "--queue", "q", "--tls-ca", "{tmp}/none.pem"], 64, "FLINTMQ_OPTION_VALUE"),
        (["lifecycle", "--since", "tomorrow"], 64, "--since"),
    ],
)
def test_wrong_options_and_a_broker_that_is_down(flintmq: Run, tmp_path: Path, arguments: list[str], code: int, text: str) -> None:
    """One line, the right code, no trace, nothing written; with --json an event besides."""
    given = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
    found, out, err = flintmq("pipeline", "run", *given, "--dry-run")
    assert (found, text in one_line(err), out) == (code, True, ""), err
    assert list(tmp_path.iterdir()) == []
    if given[0] != "archivee":
        found, out, err = flintmq("pipeline", "run", *given, "--dry-run", "--json")
        assert json.loads(out)["exit_code"] == found == code and text in json.loads(out)["text"]


def test_an_unknown_option_is_named(flintmq: Run) -> None:
    code, _, err = flintmq("pipeline", "run", "archive", "--ouut", "x")
    assert code == 64 and "--ouut" in err and "Traceback" not in err


def test_login_and_permission(flintmq: Run, at: list[str], plane_broker: Broker, tmp_path: Path) -> None:
    """A wrong password and a queue that is another connection's own: configuration (78), the reason in the line, never the password."""
    out = ["--out", str(tmp_path / "out"), "--dry-run"]
    code, _, err = flintmq("pipeline", "run", "archive", "--queue", "q", *out, "--password", "sesame", *at)
    assert code == 78 and "FLINTMQ_LOGIN_REFUSED" in one_line(err) and "sesame" not in err
    with channel_of(plane_broker) as channel:
        own = channel.queue_declare(unique("own"), exclusive=True).method.queue
        code, _, err = flintmq("pipeline", "run", "archive", "--queue", own, *out, *at)
    assert code == 78 and "FLINTMQ_FORBIDDEN" in one_line(err)
    code, _, err = flintmq("pipeline", "run", "archive", "--queue", "not-there", *out, *at)
    assert code == 69 and "not-there" in one_line(err)


def test_without_pyspark_and_without_java(flintmq: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The line says what to install."""
    import importlib.util

    arguments = ("pipeline", "run", "archive", "--queue", "q", "--out", str(tmp_path / "out"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, _, err = flintmq(*arguments)
    assert code == 69 and "Java 17" in one_line(err)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "pyspark" else real(name, *more))
    for given in (arguments, ("pipeline", "status")):
        code, _, err = flintmq(*given)
        assert code == 69 and "pip install 'flintmq[spark]'" in one_line(err)


# --- run --dry-run ------------------------------------------------------------------------------------------------------------


def test_a_dry_run_tells_and_changes_nothing(flintmq: Run, at: list[str], plane_broker: Broker, tmp_path: Path) -> None:
    """Messages and bytes of a queue; containers and records of the log; the queue, the broker's lists and the disk stay as they were."""
    queue = unique("dry")
    publish(plane_broker, queue, [b"x" * 100] * 50)
    before = flintmq("pipeline", "status", *at, "--json")[1]
    code, out, _ = flintmq("pipeline", "run", "archive", "--queue", queue, "--out", str(tmp_path / "out"), "--dry-run", "--json", *at)
    figures = json.loads(out)["figures"]
    assert code == 0 and figures["dry_run"] and figures["queues"] == {queue: 50} and figures["bytes"] == 5_000
    code, out, _ = flintmq("pipeline", "run", "audit", "--dry-run", *at)
    assert code == 0 and "containers" in out and "records" in out
    code, out, _ = flintmq("pipeline", "run", "replay", "--queue", queue, "--to-queue", "elsewhere", "--dry-run", "--json", *at)
    assert code == 0 and json.loads(out)["figures"]["txn_id"].startswith("replay:")
    assert ready(plane_broker, queue) == 50 and not (tmp_path / "out").exists()
    after = flintmq("pipeline", "status", *at, "--json")[1]
    assert [one["name"] for one in json.loads(after)["subscriptions"]] == [one["name"] for one in json.loads(before)["subscriptions"]]
    assert [one["scope"] for one in json.loads(after)["scopes"]] == [one["scope"] for one in json.loads(before)["scopes"]]


def test_a_dry_run_counts_what_streams_hold(flintmq: Run, at: list[str], plane_broker: Broker, tmp_path: Path) -> None:
    name = unique("dry-stream")
    with channel_of(plane_broker) as channel:
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
        for _ in range(7):
            channel.basic_publish("", name, b"x")
    code, out, _ = flintmq("pipeline", "run", "archive", "--queue", name, "--out", str(tmp_path / "out"), "--dry-run", "--json", *at)
    figures = json.loads(out)["figures"]
    assert code == 0 and figures["queues"] == {name: 7} and figures["rows"] == 7 and figures["bytes"] > 7
    assert not (tmp_path / "out").exists()


# --- init ---------------------------------------------------------------------------------------------------------------------


def test_init_writes_a_project_once(flintmq: Run, tmp_path: Path) -> None:
    """Python that compiles, YAML with the names given, and no file of somebody else is written over."""
    where = tmp_path / "My Orders"
    code, out, _ = flintmq("pipeline", "init", str(where), "--queue", 'in: "q"', "--flight-port", "99")
    assert code == 0 and "spark-pipelines run" in out
    for path in where.glob("transformations/*.py"):
        compile(path.read_text(), str(path), "exec")
    spec = yaml.safe_load((where / "spark-pipeline.yml").read_text())
    assert spec["name"] == "my_orders" and spec["configuration"]["spark.flintmq.queue"] == 'in: "q"'
    assert spec["configuration"]["spark.flintmq.flightPort"] == "99" and spec["storage"].startswith("file://")
    # Without a catalog on disk the project could be run once.
    assert "spark.sql.catalogImplementation hive\n" in (where / "conf" / "spark-defaults.conf").read_text()
    assert "SPARK_CONF_DIR=$PWD/conf" in out
    (where / "README.md").write_text("mine")
    (where / "spark-pipeline.yml").unlink()
    command, needs = out.splitlines()[-2:]
    assert shlex.split(command)[:4] == ["now:", "cd", str(where), "&&"] and 'in: "q"' in needs and "must exist" in needs
    code, _, err = flintmq("pipeline", "init", str(where))
    assert code == 64 and "README.md" in one_line(err)
    assert (where / "README.md").read_text() == "mine" and not (where / "spark-pipeline.yml").exists()


def test_the_example_project_is_what_init_writes() -> None:
    """examples/pipeline_project: each file as `init` makes it."""
    from flintmq.pipeline.project import project_files

    root = Path(__file__).resolve().parents[2] / "examples" / "pipeline_project"
    files = project_files("pipeline_project", "file:///tmp/flintmq-pipeline-project", "orders", "order-totals", 15_680)
    assert {path: (root / path).read_text() for path in files} == files


# --- progress -----------------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """Stands for a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_batch_is_a_line_and_on_a_terminal_a_bar_below(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Rate and lag; the bar counts towards what waits, and goes away; with --json an object on stdout and nothing else."""
    report = BatchReport(3, 1_500, 750.0, 500, 9_000, 2_500, {"addBatch": 2_000})
    plain = BatchLines(as_json=False)
    plain(report)
    plain.end()
    assert capsys.readouterr().err == "batch 3: 1,500 messages, 750/s, behind 500 (oldest 2.5 s)\n"
    lines = BatchLines(as_json=True)
    lines(report)
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["event"], found["rows"], found["behind_messages"], err) == ("batch", 1_500, 500, "")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = BatchLines(as_json=False)
    bar(report)
    assert screen.getvalue().endswith("\n[######################        ] 1,500 of 2,000")
    bar.end()
    assert screen.getvalue().endswith("\r\x1b[K")
