"""do_put of batches that contradict themselves, over real gRPC with the real codec: refused with a code; the service lives on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flintmq.flight.batches import Codec
from tests.arrow.hostile import column, good_batch, with_number
from tests.flight.fake import Plane


@pytest.fixture
def plane() -> Iterator[Plane]:
    """A service with the real codec; its broker takes every block."""
    with Plane(codec=Codec("", 1 << 20), flight_put_rows_max=1000, flight_put_made_max=1 << 20) as started:
        started.broker.answers["block"] = lambda head, payload: {"count": 1}
        yield started


def put(plane: Plane, batch: pa.RecordBatch, **descriptor: Any) -> tuple[str, str]:
    """(code, text) that the service answers with; empty when it takes the batch."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{plane.port}")
    options = flight.FlightCallOptions(headers=plane.client()._headers, timeout=20)
    command = flight.FlightDescriptor.for_command(json.dumps({"stage_id": "s", **descriptor}).encode())
    writer, reader = client.do_put(command, batch.schema, options)
    try:
        try:
            writer.write_batch(batch)
            writer.done_writing()
            assert json.loads(reader.read().to_pybytes())["count"] == batch.num_rows
        finally:
            writer.close()
    except flight.FlightError as error:
        told = json.loads(error.extra_info)
        return told["code"], told["text"]
    finally:
        client.close()
    return "", ""


WRONG: list[Callable[[pa.RecordBatch], pa.RecordBatch]] = [
    lambda batch: column(batch, "body", with_number(batch["body"], 1, 2, 4096)),
    lambda batch: column(batch, "body", with_number(batch["body"], 1, 1, -4096)),
    lambda batch: column(batch, "body", with_number(batch["body"], 1, 3, 0)),
    lambda batch: column(batch, "routing_key", with_number(batch["routing_key"], 1, 3, -1)),
    lambda batch: column(batch, "message_id", with_number(batch["message_id"], 1, 2, 2**31 - 1)),
    lambda batch: column(batch, "headers", with_number(batch["headers"], 1, 2, 2**31 - 1)),
    lambda batch: column(batch, "headers", with_number(batch["headers"], 1, 1, -1)),
]


def test_offsets_of_a_client_reach_nobody_elses_memory(plane: Plane) -> None:
    """Not one block of such a batch comes to the broker, and the service answers the next call."""
    for make in WRONG:
        code, text = put(plane, make(good_batch()))
        assert code == "BAD_ROW", text
    assert not plane.broker.calls("block")
    assert put(plane, good_batch()) == ("", "")
    assert len(plane.broker.calls("block")) == 1


def test_rows_and_repetition_have_limits(plane: Plane) -> None:
    """Rows of constants take no bytes on the wire; what a batch becomes is bounded as well."""
    code, text = put(plane, pa.record_batch({"body": pa.array([b""] * 1001)}))
    assert code == "BAD_ARGUMENT" and "1001 rows" in text
    code, text = put(plane, pa.record_batch({"priority": pa.array([1] * 1000)}), constants={"body": "x" * 2000})
    assert code == "BAD_ARGUMENT" and "1048576 bytes" in text


@pytest.mark.parametrize(
    "descriptor",
    [
        {"block_bytes": 1 << 40},
        {"block_bytes": 1},
        {"exchange": 7},
        {"routing_key": ["a"]},
        {"constants": []},
        {"constants": {"app_id": "\ud800"}},
        {"constants": {"priority": 2**70}},
        {"constants": {"block_bytes": 1}},
        {"first_row": -1},
    ],
)
def test_what_a_descriptor_may_choose(plane: Plane, descriptor: dict[str, Any]) -> None:
    """The size of a block is the service's own; everything else has a type."""
    code, text = put(plane, pa.record_batch({"body": [b"a"]}), **descriptor)
    assert code in ("BAD_ARGUMENT", "BAD_ROW"), text
    assert not plane.broker.calls("block")
