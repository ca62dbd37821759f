"""spec.py is what the generator makes of the specification, and says what RabbitMQ puts on the wire."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flintmq.protocol.v0_9_1 import spec

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = ROOT / "tools" / "gen_amqp091.py"


def test_generated_file_is_up_to_date() -> None:
    """`gen_amqp091.py --check` accepts the committed spec.py."""
    result = subprocess.run([sys.executable, str(GENERATOR), "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_check_notices_a_stale_file(tmp_path: Path) -> None:
    """`--check` refuses a spec.py that differs by one line."""
    for part in (GENERATOR, ROOT / "tools/specs/amqp0-9-1.extended.xml", ROOT / "src/flintmq/protocol/v0_9_1/spec.py"):
        copy = tmp_path / part.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(part.read_bytes())
    target = tmp_path / "src/flintmq/protocol/v0_9_1/spec.py"
    target.write_text(target.read_text() + "\n# edited\n")
    command = [sys.executable, str(tmp_path / "tools/gen_amqp091.py")]
    assert subprocess.run([*command, "--check"], capture_output=True, check=False).returncode == 1
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert target.read_bytes() == (ROOT / "src/flintmq/protocol/v0_9_1/spec.py").read_bytes()


@pytest.mark.parametrize(
    ("name", "class_id", "method_id"),
    [
        ("connection.start", 10, 10),
        ("connection.blocked", 10, 60),
        ("connection.unblocked", 10, 61),
        ("connection.update-secret", 10, 70),
        ("connection.update-secret-ok", 10, 71),
        ("channel.close", 20, 40),
        ("exchange.unbind-ok", 40, 51),  # RabbitMQ's number, out of line with the others
        ("queue.unbind", 50, 50),
        ("basic.publish", 60, 40),
        ("basic.nack", 60, 120),
        ("confirm.select", 85, 10),
        ("tx.rollback-ok", 90, 31),
    ],
)
def test_method_ids(name: str, class_id: int, method_id: int) -> None:
    """Ids known from RabbitMQ's framing stand in METHOD_IDS and METHODS."""
    id_ = spec.METHOD_IDS[name]
    assert id_ == class_id << 16 | method_id
    assert name == spec.METHODS[id_].NAME
    assert id_ == spec.METHODS[id_].ID


def test_names_ids_and_classes_are_one_to_one() -> None:
    """Every name has one id and every id one class; nothing is shadowed."""
    assert set(spec.METHOD_IDS.values()) == set(spec.METHODS)
    assert len(spec.METHOD_IDS) == len(spec.METHODS) == len(set(spec.METHODS.values()))


def test_methods_with_content() -> None:
    """Exactly publish, return, deliver and get-ok are followed by a content header."""
    assert {m.NAME for m in spec.METHODS.values() if m.HAS_CONTENT} == {"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"}


def test_synchronous_flags() -> None:
    """Requests that wait for a reply are marked, the others are not."""
    assert spec.QueueDeclare.SYNCHRONOUS and spec.ConnectionClose.SYNCHRONOUS and spec.ConfirmSelect.SYNCHRONOUS
    assert not (spec.BasicPublish.SYNCHRONOUS or spec.BasicAck.SYNCHRONOUS or spec.ConnectionBlocked.SYNCHRONOUS)


def test_attributes_of_queue_declare() -> None:
    """Attributes are named as in the specification, reserved arguments have none, defaults are empty and not shared."""
    method = spec.QueueDeclare("q", durable=True)
    assert (method.queue, method.durable, method.passive, method.no_wait, method.arguments) == ("q", True, False, False, {})
    assert [name for name, _ in spec.QueueDeclare.FIELDS] == [
        "queue",
        "passive",
        "durable",
        "exclusive",
        "auto_delete",
        "no_wait",
        "arguments",
    ]
    assert spec.QueueDeclare.WIRE == b"-hsbbbbbF"
    method.arguments["x"] = 1
    assert spec.QueueDeclare().arguments == {}
    with pytest.raises(AttributeError):
        method.dureable = True  # type: ignore[attr-defined]


def test_renamed_attributes() -> None:
    """`nowait` reads no_wait everywhere, and `global` is no Python name."""
    assert spec.ConfirmSelect(no_wait=True).no_wait
    assert spec.BasicQos(0, 10, True).global_


@pytest.mark.parametrize("class_", spec.METHODS.values(), ids=lambda class_: class_.NAME)
def test_every_class_is_slotted_and_consistent(class_: type[spec.Method]) -> None:
    """__slots__, FIELDS and WIRE name the same arguments in the same order, and no instance has a dict."""
    assert tuple(name for name, _ in class_.FIELDS) == class_.__slots__
    letters = class_.WIRE.decode()
    visible = [letter for i, letter in enumerate(letters) if letter != "-" and (i == 0 or letters[i - 1] != "-")]
    by_type = {"bit": "b", "octet": "o", "short": "h", "long": "l", "longlong": "q", "shortstr": "s", "longstr": "S", "table": "F"}
    assert visible == [by_type[wire] for _, wire in class_.FIELDS]
    assert not hasattr(class_(), "__dict__")


def test_equality_and_repr() -> None:
    """Methods compare by class and arguments, and print their arguments."""
    assert spec.BasicAck(1, True) == spec.BasicAck(1, True)
    assert spec.BasicAck(1, True) != spec.BasicAck(2, True)
    assert spec.QueuePurgeOk(1) != spec.QueueDeleteOk(1)
    assert repr(spec.BasicAck(1, True)) == "BasicAck(delivery_tag=1, multiple=True)"


def test_basic_properties_order_and_bits() -> None:
    """Properties stand in wire order from bit 15 down to bit 2."""
    names = [name for name, _, _ in spec.BASIC_PROPERTIES]
    assert names == [
        "content_type",
        "content_encoding",
        "headers",
        "delivery_mode",
        "priority",
        "correlation_id",
        "reply_to",
        "expiration",
        "message_id",
        "timestamp",
        "type",
        "user_id",
        "app_id",
        "cluster_id",
    ]
    assert [flag for _, _, flag in spec.BASIC_PROPERTIES] == [1 << bit for bit in range(15, 1, -1)]
    wires = {name: wire for name, wire, _ in spec.BASIC_PROPERTIES}
    assert (wires["headers"], wires["delivery_mode"], wires["priority"], wires["timestamp"]) == ("table", "octet", "octet", "timestamp")


def test_frame_constants() -> None:
    """Frame types, frame end and the least frame size of specification 4.2.3."""
    assert (spec.FRAME_METHOD, spec.FRAME_HEADER, spec.FRAME_BODY, spec.FRAME_HEARTBEAT) == (1, 2, 3, 8)
    assert (spec.FRAME_END, spec.FRAME_MIN_SIZE, spec.CLASS_BASIC) == (0xCE, 4096, 60)
