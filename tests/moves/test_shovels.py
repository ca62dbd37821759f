"""Values of shovels: RabbitMQ 3.10's texts, which a live node gave (tests/interop/test_shovel_rabbitmq.py asks it again)."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.moves.shovels import check, plan

GOOD = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://h"}
# what is added to GOOD (None: taken away) -> lines
RABBITMQ: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"src-queue": None}, ["Must specify 'src-exchange' or 'src-queue'"]),
    ({"src-exchange": "e"}, ["Cannot specify 'src-exchange' and 'src-queue'"]),
    ({"dest-queue": "q", "dest-exchange": "e"}, ["Cannot specify 'dest-exchange' and 'dest-queue'"]),
    ({"dest-uri": None, "src-uri": None}, ['Key "dest-uri" not found in n', 'Key "src-uri" not found in n']),
    ({"ack-mode": "bad"}, ['ack-mode should be one of no-ack, on-publish, on-confirm, actually was "bad"']),
    ({"ack-mode": 1}, ["ack-mode should be a text, actually was 1"]),
    ({"reconnect-delay": "x"}, ['reconnect-delay should be a number, actually was "x"']),
    (
        {"src-delete-after": -1},
        ['src-delete-after should be a number greater than or equal to 0, "never" or "queue-length", actually was -1'],
    ),
    (
        {"src-delete-after": 1.5},
        ['src-delete-after should be a number greater than or equal to 0, "never" or "queue-length", actually was 1.5'],
    ),
    ({"src-delete-after": 5, "ack-mode": "no-ack"}, ["Cannot specify 'no-ack' and numerical 'delete-after'"]),
    ({"unknown": 1, "other": 2}, ['Unrecognised terms {"other": 2, "unknown": 1} in n']),
    ({"src-uri": 5}, ["src-uri should be a list, actually was 5"]),
    ({"dest-add-forward-headers": "x"}, ['dest-add-forward-headers should be true or false, actually was "x"']),
    ({"src-prefetch-count": "x"}, ['src-prefetch-count should be a number, actually was "x"']),
    ({"dest-publish-properties": {"delivery_mode": "x"}}, ['delivery_mode should be a number, actually was "x"']),
    ({"dest-publish-properties": {"bad": "x"}}, ['Unrecognised terms {"bad": "x"} in dest-publish-properties']),
    ({"src-queue": 5}, ["src-queue should be a text, actually was 5"]),
    (
        {"ack-mode": "bad", "reconnect-delay": "x"},
        [
            'ack-mode should be one of no-ack, on-publish, on-confirm, actually was "bad"',
            'reconnect-delay should be a number, actually was "x"',
        ],
    ),
]
# where RabbitMQ accepts what can't work, or fails with 500
OWN: list[tuple[dict[str, Any], str]] = [
    ({"reconnect-delay": -1}, "from 0 to"),
    ({"reconnect-delay": float("nan")}, "from 0 to"),
    ({"src-prefetch-count": 70_000}, "from 0 to 65535"),
    ({"src-uri": []}, "1 to 32 URIs"),
    ({"src-uri": ["amqp://h"] * 33}, "1 to 32 URIs"),
    ({"src-uri": "amqp://u:secret@h:x"}, "not a valid URI"),
    ({"src-queue-args": 5}, "should be an object"),
    ({"src-queue-args": {"x": 2**64}}, "too large"),
    ({"src-queue": "q" * 256}, "at most 255 bytes"),
    ({"src-protocol": "amqp10"}, "should be one of"),
]


def value(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in (GOOD | changes).items() if one is not None}


@pytest.mark.parametrize(("changes", "lines"), RABBITMQ, ids=str)
def test_rabbitmqs_texts(changes: dict[str, Any], lines: list[str]) -> None:
    assert check("n", value(changes)) == lines


@pytest.mark.parametrize(("changes", "text"), OWN, ids=str)
def test_what_rabbitmq_lets_pass(changes: dict[str, Any], text: str) -> None:
    (line,) = check("n", value(changes))
    assert text in line and "secret" not in line


@pytest.mark.parametrize("whole", [None, 5, "x", [], [1]])
def test_what_is_no_object(whole: Any) -> None:
    assert check("n", whole)


def test_old_names_and_defaults() -> None:
    made = plan("n", "/", "c", GOOD)
    assert (made["ack-mode"], made["reconnect-s"], made["prefetch"], made["delete-after"]) == ("on-confirm", 5.0, 1000, "never")
    made = plan(
        "n", "/", "c", GOOD | {"prefetch-count": 7, "delete-after": 3, "add-forward-headers": True, "publish-properties": {"priority": 1}}
    )
    assert (made["prefetch"], made["delete-after"], made["properties"]) == (7, 3, {"priority": 1})
    assert made["forward-headers"] == {
        "shovelled-by": "c", "shovel-type": "dynamic", "shovel-name": "n", "shovel-vhost": "/", "src-queue": "a",
    }  # fmt: skip
