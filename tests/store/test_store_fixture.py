"""Stores of released formats: each one opens with everything that was in it, or is refused by name."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flintmq.errors import StoreError
from flintmq.store.log.inspect import Damage, open_store
from flintmq.store.log.inspect_state import read_state
from tests.support import logbytes as lb

DrivenStore = pytest.importorskip("tests.drivers.store_driver", reason="the compiled store is not built").DrivenStore

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
# what does not depend on the format
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "store-v3" / "expected.json").read_text())


@pytest.fixture(params=["store-v1", "store-v2", "store-v3"])
def fixture(request: pytest.FixtureRequest) -> Path:
    return FIXTURES / str(request.param)


@pytest.fixture
def expected(fixture: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((fixture / "expected.json").read_text())
    return told


@pytest.fixture(params=["clean", "unclean"])
def store(request: pytest.FixtureRequest, fixture: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fixture / request.param, tmp_path / request.param))


def opened(path: Path) -> Any:
    return DrivenStore.open(
        None,
        str(path),
        container_size=EXPECTED["container_size"],
        store_uuid=bytes.fromhex(EXPECTED["uuid"]),
        known_queues={int(queue) for queue in EXPECTED["queues"]},
        queue_high_water=EXPECTED["high_water"],
        threads=False,
        spill=False,
    )


def held(store: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """What the store has on its queues, in the form of expected.json."""
    queues: dict[str, dict[str, dict[str, Any]]] = {}
    for queue in EXPECTED["queues"]:
        found = queues.setdefault(queue, {})
        for entry in store.entries(int(queue)):
            content = store.content(entry.message_id)
            found[str(entry.position)] = {
                "exchange": content.exchange.decode(),
                "routing_key": content.routing_key.decode(),
                "header": content.header.hex(),
                "size": len(content.body),
                "sha256": hashlib.sha256(content.body).hexdigest(),
                "expires_at_ms": entry.expires_at_ms,
            }
    return queues


def test_a_store_of_any_format_opens_with_everything_that_was_in_it(store: Path, expected: dict[str, Any]) -> None:
    """Entries, contents, order, transactions in doubt and notes come back; so they do a second time."""
    for _ in range(2):
        opening = opened(store)
        try:
            assert held(opening) == expected["queues"]
            assert [xid.hex() for xid in opening.in_doubt()] == list(expected["in_doubt"])
            for xid, entries in expected["in_doubt"].items():
                tx = opening.transaction_of(bytes.fromhex(xid))
                dequeues, _ = opening.in_doubt_entries(tx)
                assert [one[0] for one in opening.enqueues_in_doubt(tx)] == entries["enqueues"]
                assert [list(one[:2]) for one in dequeues] == entries["dequeues"]
            assert {key.decode(): value.decode() for key, value in opening.notes(1).items()} == expected["notes"]
        finally:
            opening.close(clean=False)


def test_the_independent_reader_agrees(store: Path, expected: dict[str, Any]) -> None:
    """`flintmq log` finds no damage in it, and the same entries."""
    view = open_store(store)
    state = read_state(view)
    assert [found for log in view.logs.values() for found in log.damage] + state.damage == []
    assert view.logs["messages"].clean == view.logs["transactions"].clean == (store.name == "clean")
    standing: dict[str, set[str]] = {queue: set() for queue in EXPECTED["queues"]}
    for message in state.messages.values():
        for spot in state.spots(message):
            if state.visible(spot):
                standing[str(spot.queue)].add(str(spot.position))
    assert standing == {queue: set(entries) for queue, entries in expected["queues"].items()}
    assert {t.xid.hex() for t in state.transactions.values() if t.state == "prepared"} == set(expected["in_doubt"])


def test_what_a_broker_makes_of_it_reads_well(store: Path) -> None:
    """After the broker opened it, used it and stopped cleanly, the independent reader still finds nothing wrong."""
    opening = opened(store)
    opening.close(clean=True)
    view = open_store(store)
    items = [item for log in view.logs.values() for item in log.records()]
    assert [found for log in view.logs.values() for found in log.damage] == []
    assert not any(isinstance(item, Damage) for item in items) and view.logs["messages"].clean


@pytest.mark.parametrize("log", ["messages", "transactions"])
def test_a_store_of_a_later_format_is_refused_by_name(store: Path, log: str) -> None:
    """Format version 4 in a header: the broker names the file, the version it found and the one it knows; nothing is changed."""
    number = {"messages": 1, "transactions": 2}[log]
    for file in (store / log).glob("*.flog"):
        head = lb.container_header(int(file.stem), EXPECTED["container_size"], number, bytes.fromhex(EXPECTED["uuid"]), version=4)
        file.write_bytes(head + file.read_bytes()[512:])
    before = {file: file.read_bytes() for file in store.rglob("*.flog")}
    with pytest.raises(StoreError, match=r"\.flog has format version 4; this FlintMQ reads versions up to 3"):
        opened(store)
    assert {file: file.read_bytes() for file in store.rglob("*.flog")} == before
    found = open_store(store).logs[log].damage
    assert found and all(item.kind == "format" and "format version 4" in item.text for item in found)


def test_the_script_that_made_it_still_works(tmp_path: Path) -> None:
    """The present writer, doing the same, gives a store that holds the same."""
    import importlib.util

    path = FIXTURES.parents[1] / "tools" / "make_store_fixture.py"
    spec = importlib.util.spec_from_file_location("make_store_fixture", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert json.loads(json.dumps(module.make(tmp_path / "made"))) == EXPECTED
    for kind in ("clean", "unclean"):
        view = open_store(tmp_path / "made" / kind)
        state = read_state(view)
        assert [found for log in view.logs.values() for found in log.damage] + state.damage == []
