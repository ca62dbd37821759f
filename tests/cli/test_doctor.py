"""`flintmq doctor`: each finding by what causes it, on a running broker and in a directory; a look that fails is a finding of its own."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flintmq.cli import doctor
from flintmq.cli.main import cli
from flintmq.errors import OperatorError
from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Client


def ask(*words: object, code: int | None = None) -> dict[str, dict[str, str]]:
    """Findings by title."""
    result = CliRunner().invoke(cli, ["doctor", "--json", *map(str, words)])
    assert result.exit_code in (0, 1) and (code is None or result.exit_code == code), (result.output, result.exception)
    value = json.loads(result.output)
    assert value["ok"] == (result.exit_code == 0) == all(one["level"] == "hint" for one in value["findings"])
    return {one["title"]: one for one in value["findings"]}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http_port=0, limits={"housekeeping_ms": 20}) as started:
        yield started


def uri(broker: Broker) -> tuple[str, str]:
    return "--uri", f"http://127.0.0.1:{broker.node.http_port}"


def test_what_is_wrong_with_a_running_broker(broker: Broker) -> None:
    api, host = Api(Client(broker)), broker.node.broker.vhosts["/"]
    assert usual(ask(*uri(broker))) <= {"The password that everybody knows", "Memory is nearly short"}
    host.run(host.declare_queue("q\x1b[2J", arguments={"x-dead-letter-exchange": "none"}))
    host.run(host.declare_exchange("e", "fanout", arguments={"alternate-exchange": "nowhere"}))
    api.put(
        "parameters/shovel/%2F/s", {"value": {"src-uri": "amqp://", "src-queue": "q", "dest-uri": "amqp://127.0.0.1:1", "dest-queue": "d"}}
    )
    found = ask(*uri(broker), code=1)
    assert "names 'none'" in found["A dead-letter exchange is missing"]["text"]
    assert "'e' in vhost '/' names 'nowhere'" in found["An alternate exchange is missing"]["text"]
    plain = CliRunner().invoke(cli, ["doctor", *uri(broker)])
    assert plain.exit_code == 1 and "warning: A dead-letter exchange is missing" in plain.output and "\x1b" not in plain.output


def test_a_flight_service_that_does_not_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with Broker(data_dir=str(tmp_path), http_port=0, flight_port=port, limits={"flight_port_ms": 1}) as durable:
            assert durable.node.flight_port() is None
            assert "Spark can't reach this broker" in ask(*uri(durable), code=1)["The Flight service does not start"]["text"]


def test_a_policy_names_a_dead_letter_exchange(broker: Broker) -> None:
    api = Api(Client(broker))
    broker.node.broker.vhosts["/"].run(broker.node.broker.vhosts["/"].declare_queue("q"))
    api.put("policies/%2F/p", {"pattern": "q", "definition": {"dead-letter-exchange": "later"}})
    assert "A dead-letter exchange is missing" in ask(*uri(broker))
    broker.node.broker.vhosts["/"].run(broker.node.broker.vhosts["/"].declare_exchange("later", "fanout"))
    assert "A dead-letter exchange is missing" not in ask(*uri(broker))


def test_who_may_see_less_is_told_so_and_who_may_nothing_is_refused(broker: Broker) -> None:
    api = Api(Client(broker))
    api.user("looks", "management", "%2F")
    api.user("nobody", "", "%2F")
    found = ask(*uri(broker), "-u", "looks", "--password", "looks")
    assert found["No look at users"]["advice"] == "Ask as an administrator"
    refused = CliRunner().invoke(cli, ["doctor", *uri(broker), "-u", "nobody", "--password", "nobody"])
    assert isinstance(refused.exception, OperatorError) and refused.exception.exit_code == 77
    away = CliRunner().invoke(cli, ["doctor", "--uri", "http://127.0.0.1:1"])
    assert isinstance(away.exception, OperatorError) and away.exception.exit_code == 69


def test_versions_and_clocks_that_differ() -> None:
    now = {"now": {"at_ms": 0}, "version": "0.0.1"}
    assert [one.title for one in doctor._versions(now)] == ["Versions differ", "Clocks differ"]


def test_the_doctor_and_the_diagnosis_say_the_same(broker: Broker) -> None:
    """One list of rules: what the broker's diagnosis shows, the command shows, and of the broker nothing else but its own login."""
    api, host = Api(Client(broker)), broker.node.broker.vhosts["/"]
    host.run(host.declare_queue("q", arguments={"x-dead-letter-exchange": "none"}))
    value = {"src-uri": "amqp://", "src-queue": "nowhere", "src-predeclared": True, "dest-uri": "amqp://", "dest-queue": "d"}
    api.put("parameters/shovel/%2F/s", {"value": value})
    cards = {one["title"] for one in api.get("v1/diagnosis")["cards"]}
    assert cards | {"The password that everybody knows"} == set(ask(*uri(broker)))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with Broker(data_dir=str(path)):
        pass
    path.chmod(0o700)
    return path


def usual(found: dict[str, Any]) -> set[str]:
    """Without what this machine may be short of."""
    return set(found) - {
        "The disk is nearly full",
        "Few inodes are left",
        "Few descriptors",
        "The store goes with its container",
        "Nothing is durable there",
    }


def test_a_directory_of_a_broker_that_is_stopped(store: Path) -> None:
    assert usual(ask("--data-dir", store)) == set() == usual(ask("--data-dir", store, "--deep"))
    store.chmod(0o755)
    store.with_name("store.partial").mkdir()
    assert usual(ask("--data-dir", store, code=1)) == {"The directory is open to others", "A restore was interrupted"}


def test_damage_is_found(store: Path) -> None:
    file = sorted((store / "messages").glob("*.flog"))[0]
    data = bytearray(file.read_bytes())
    data[8:200] = bytes(192)
    file.write_bytes(data)
    assert "A log is damaged" in ask("--data-dir", store, code=1) and "A log is damaged" in ask("--data-dir", store, "--deep", code=1)


def test_definitions_that_are_damaged_or_none(store: Path) -> None:
    file = store / "definitions.db"
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA journal_mode=delete")
    connection.close()
    data = bytearray(file.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    file.write_bytes(data)
    found = ask("--data-dir", store, code=1)
    assert "The definitions are damaged" in found or "No look at its definitions" in found
    file.unlink()
    assert "No definitions here" in ask("--data-dir", store)


def test_a_running_brokers_directory_and_what_is_none(tmp_path: Path) -> None:
    with Broker(data_dir=str(tmp_path / "live")):
        assert "A broker has it open" in ask("--data-dir", tmp_path / "live")
    for path, code in ((tmp_path / "no", 64), (tmp_path, 64)):
        result = CliRunner().invoke(cli, ["doctor", "--data-dir", str(path)])
        assert isinstance(result.exception, OperatorError) and result.exception.exit_code == code


def test_the_file_system_is_that_of_the_longest_mount(tmp_path: Path) -> None:
    assert doctor._kind_of(Path("/proc/self")) == "proc"
    assert doctor._kind_of(tmp_path) not in ("", "proc")


def test_a_look_that_fails_is_a_finding_and_others_go_on() -> None:
    def broken() -> Iterator[doctor.Finding]:
        raise KeyError("gone")
        yield

    def good() -> Iterator[doctor.Finding]:
        yield doctor.Finding("hint", "t", "x", "a")

    assert [one.title for one in doctor._all([("one", broken), ("two", good)])] == ["No look at one", "t"]
