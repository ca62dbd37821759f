"""`flintmq log` on the store of a real broker: while it runs, after kill -9, and after a clean stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self

import pika
import pytest
from click.testing import CliRunner

from flintmq.cli.log import log
from tests.support.broker import wait_until

COUNTS = {"orders": 120, "invoices": 40}
ACKED = 50


class Refused(Exception):
    """The broker did not start; its argument is the exit code."""


class Broker:
    """A broker with a store on disk, a child process that is signalled by its pid only."""

    def __init__(self, store: Path, *extra: str) -> None:
        words = ["serve", "--port", "0", "--http-port", "off", "--flight-port", "off", "--data-dir", str(store), *extra]
        command = [sys.executable, "-m", "flintmq.cli.main", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.stdout.close()
            raise Refused(self.process.wait(60))
        ready = json.loads(line)
        self.url = f"amqp://guest:guest@127.0.0.1:{ready['amqp_port']}/%2F"
        if ready["store_dir"] is None:
            self.__exit__()
            pytest.skip("this broker keeps nothing on disk yet")
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.process.stdout.close()  # type: ignore[union-attr]
        assert code in (0, -signal.SIGKILL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


def run(command: str, store: Path, *words: str, code: int = 0) -> Any:
    """JSON that a `flintmq log` command prints."""
    result = CliRunner().invoke(log, [command, str(store), "--json", *words])
    assert result.exit_code == code, (result.stdout[-3000:], result.stderr, result.exception)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return lines if command == "dump" else lines[0]


def load(broker: Broker) -> None:
    """Confirmed publishes to two durable queues, some of them settled, one transaction, one large message."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    persistent = pika.BasicProperties(delivery_mode=2)
    for name in (*COUNTS, "large"):
        channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    for name, count in COUNTS.items():
        for i in range(count):
            channel.basic_publish("", name, f"{name} {i}".encode() * 20, persistent)
    channel.basic_publish("", "large", bytes(range(256)) * 12_000, persistent)
    transacted = connection.channel()
    transacted.tx_select()
    for name in COUNTS:
        # Too long for one commit block: such a transaction has a Commit.
        transacted.basic_publish("", name, b"in a transaction" * 2_000, persistent)
    transacted.tx_commit()
    for _ in range(ACKED):
        method, _, _ = channel.basic_get("orders")
        channel.basic_ack(method.delivery_tag)
    channel.basic_get("invoices")  # delivered, not settled
    # A synchronous call behind the acknowledgements: they were taken when it returns.
    channel.queue_declare("orders", passive=True)
    connection.close()


def long_body(number: int) -> bytes:
    """Too long for one commit block: a transaction with it has a Commit."""
    return str(number).encode() * 20_000


def expected() -> list[int]:
    return sorted([COUNTS["orders"] + 1 - ACKED, COUNTS["invoices"] + 1, 1])


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_real_store_reads_well(tmp_path: Path, end: str) -> None:
    """A running, a killed and a stopped broker's store has no damage, and exactly the messages that are on its queues."""
    store = tmp_path / "store"
    with Broker(store, "--container-size", str(512 * 1024)) as broker:
        load(broker)
        told = wait_until(lambda: _settled(store), what="all acknowledgements on disk")
        assert told["in_use"] and told["damage"] == 0
        assert run("verify", store)["ok"]
        if end == "kill":
            broker.kill()
    verified = run("verify", store)
    assert verified["ok"] and not verified["in_use"], verified
    assert verified["logs"]["messages"]["clean"] == (end == "stop")
    figures = run("stats", store)
    assert sorted(figures["queues"].values()) == expected()
    assert sorted(figures["queue_names"].values()) in ([], ["/ invoices", "/ large", "/ orders"])
    assert figures["messages"]["live"] == sum(expected()) and figures["messages"]["pending"] == 0
    lines = run("dump", store, "--bodies")
    types = Counter(line["type"] for line in lines)
    assert (
        types["Message-Start"] + types["Message"] >= sum(COUNTS.values()) + 3
        and types["Message"] > types["Message-Shape"] > 0
        and types["Message-Chunk"] > 3
        and types["Commit"] >= 1
    )
    assert not [line for line in lines if "malformed" in line["fields"]]


def _settled(store: Path) -> Any:
    figures = run("stats", store)
    return figures if sorted(figures["queues"].values()) == expected() else None


def test_a_store_that_was_killed_repairs_to_itself(tmp_path: Path) -> None:
    """`repair` finds nothing to do after kill -9, and a broker in use is left alone."""
    store = tmp_path / "store"
    with Broker(store) as broker:
        load(broker)
        refused = CliRunner().invoke(log, ["repair", str(store), "--accept-loss"])
        assert "in use" in str(refused.exception)
        broker.kill()
    result = CliRunner().invoke(log, ["repair", str(store), "--accept-loss"])
    assert (result.exit_code, result.stdout.strip()) == (0, "nothing to repair")


def test_a_damaged_transaction_log_is_refused_until_it_is_repaired(tmp_path: Path) -> None:
    """One flipped bit in a Commit: the broker does not start; after a repair it does, without that transaction and with all others."""
    store = tmp_path / "store"
    with Broker(store) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        for name in ("left", "right"):
            channel.queue_declare(name, durable=True)
        channel.tx_select()
        for i in range(10):
            for name in ("left", "right"):
                channel.basic_publish("", name, long_body(i), pika.BasicProperties(delivery_mode=2))
            channel.tx_commit()
        connection.close()
        broker.kill()
    commit = [line for line in run("dump", store, "--log", "transactions") if line["type"] == "Commit"][4]
    file = store / "transactions" / f"{commit['container']:020d}.flog"
    data = bytearray(file.read_bytes())
    data[commit["offset"] + 24] ^= 1
    file.write_bytes(data)
    with pytest.raises(Refused) as refused, Broker(store):
        pass
    assert refused.value.args == (74,)
    assert [found["lsn"] for found in run("verify", store, code=65)["damage"]] == [commit["lsn"]]
    report = CliRunner().invoke(log, ["repair", str(store), "--accept-loss"])
    assert report.exit_code == 0 and "2 of their publishes are dropped" in report.stdout
    with Broker(store) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        for name in ("left", "right"):
            bodies = [channel.basic_get(name, auto_ack=True)[2] for _ in range(9)]
            assert bodies == [long_body(i) for i in range(10) if i != 4]
            assert channel.basic_get(name)[0] is None
        connection.close()
    assert run("verify", store)["ok"]


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_old_messages_are_read_after_new_ones_were_written_behind_them(tmp_path: Path, end: str) -> None:
    """After a restart the tail container holds messages of both runs: appending to it does not hide what was there."""
    store = tmp_path / "store"
    persistent = pika.BasicProperties(delivery_mode=2)
    for bodies in ([b"1", b"2", b"3"], [b"4"]):
        with Broker(store) as broker:
            connection = pika.BlockingConnection(pika.URLParameters(broker.url))
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            for body in bodies:
                channel.basic_publish("", "q", body, persistent)
            if len(bodies) == 1:
                assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(5)] == [b"1", b"2", b"3", b"4", None]
            connection.close()
            if end == "kill":
                broker.kill()
    assert run("verify", store)["ok"]
