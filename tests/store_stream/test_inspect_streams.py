"""`flintmq log` reads the logs of streams, by its own reading of docs/FORMAT.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from flintmq.cli.log import log
from flintmq.clock import SystemClock
from flintmq.store.log.inspect import open_store
from flintmq.store.log.record_fields import STREAM_MESSAGE, Record, content_parts, fields_of
from flintmq.store.log_store import LogStore
from tests.store_stream.rig import UUID, filtered, header


def made(path: Path) -> dict[int, bytes]:
    """A store with a stream of queue id 4: clean stop, kill, long messages, filter values."""
    sent: dict[int, bytes] = {}
    for round_ in range(3):
        store: Any = LogStore.open(
            None, str(path), container_size=524288, store_uuid=UUID, known_queues={4}, threads=False, clock=SystemClock(), spill=False
        )
        stream = store.streams.open(4)
        for number in range(20):
            body = b"%d-%d" % (round_, number) * (30_000 if number % 10 == 9 else 3)
            offset, _ = stream.append(b"ex", b"key", filtered(body, b"red") if number % 2 else header(body), body)
            sent[offset] = body
        while store.flush() == 1 or store.streams.prepare():
            pass
        store.close(clean=round_ != 1)
    return sent


def test_records_of_a_stream(tmp_path: Path) -> None:
    """The independent reader finds every message at its offset, with its filter value and its bytes, whole or in chunks."""
    sent = made(tmp_path)
    source = open_store(tmp_path, ("streams/4",)).logs["streams/4"]
    assert source.damage == []
    found: dict[int, bytes] = {}
    for block in source.blocks:
        for record in source.records_of(block):
            assert isinstance(record, Record)
            values = fields_of(record, source.number)
            if record.type == STREAM_MESSAGE:
                assert values["filter"] == (b"red" if values["stream_offset"] % 2 else None)
                found[values["stream_offset"]] = content_parts(values)["body"]
            elif "stream_offset" in values:
                found[values["stream_offset"]] += values["content"]
    assert found == sent


def test_dump_and_verify(tmp_path: Path) -> None:
    """`flintmq log dump --log streams/4` prints them; `verify` checks streams, too, and names a damaged one."""
    sent = made(tmp_path)
    runner = CliRunner()
    result = runner.invoke(log, ["dump", str(tmp_path), "--log", "streams/4", "--json"])
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert {line["fields"]["stream_offset"] for line in lines if line["type"] == "Stream-Message"} == set(sent)
    assert any(line["type"] == "Stream-Mark" for line in lines)
    result = runner.invoke(log, ["verify", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["logs"]["streams/4"]["records"] == len(lines)
    file = sorted((tmp_path / "streams" / "4").glob("*.flog"))[0]
    with file.open("r+b") as opened:
        opened.seek(700)
        opened.write(b"\xff\xff")
    result = runner.invoke(log, ["verify", str(tmp_path)])
    assert result.exit_code == 65
    assert f"streams/4/{file.name}" in result.output
    assert runner.invoke(log, ["dump", str(tmp_path), "--log", "streams/x"]).exit_code != 0
