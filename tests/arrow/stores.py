"""Rows of the broker's `rows` answer, made from a store by the independent reader (tests/oracle)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracle.log import Damage, open_store
from tests.oracle.records import Kind, content_parts, fields_of, in_full

ROW = struct.Struct("<QQQIHBB")


@dataclass
class Found:
    """A message as the plain reader sees it."""

    id: int
    where: int
    copy: bool
    published_us: int
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes
    enqueued: list[tuple[int, int, int]]  # queue, position, time


def found_in(store: Path) -> list[Found]:
    """Every Message, Message-Start and -Copy whose content is in the log, in log order; contents put together from chunks."""
    log = open_store(Path(store))["messages"]
    found: list[tuple[Found, dict[str, Any], bytearray]] = []
    latest: dict[int, tuple[Found, dict[str, Any], bytearray]] = {}
    for record in in_full(log.records(), log.container_size):
        if isinstance(record, Damage):
            continue
        values = fields_of(record, log.number)
        if record.type in (Kind.MESSAGE_START, Kind.MESSAGE_COPY):
            number = record.undo_prev or record.lsn
            published = record.time_us if record.type == Kind.MESSAGE_START else values.get("published_us", 0)
            message = Found(number, record.lsn, record.type == Kind.MESSAGE_COPY, published, b"", b"", b"", b"", [])
            latest[number] = (message, values, bytearray(values["content"]))
            found.append(latest[number])
        elif record.type == Kind.MESSAGE_CHUNK and record.undo_prev in latest:
            run = latest[record.undo_prev][2]
            if values["offset"] == len(run):
                run.extend(values["content"])
        elif record.type == Kind.MESSAGE_ENQUEUE and record.undo_prev in latest:
            latest[record.undo_prev][0].enqueued.append((values["queue"], values["position"], record.time_us))
    whole = []
    for message, values, run in found:
        if len(run) != values["body"] + values["header"] + values["route"]:
            continue
        message.header, message.body = content_parts({**values, "content": bytes(run)})
        cut = 1 + run[0]
        message.exchange, message.routing_key = bytes(run[1:cut]), bytes(run[cut + 1 : values["route"]])
        whole.append(message)
    return whole


def row(message: Found, position: int = 1, deliveries: int = 0, redelivered: bool = False) -> bytes:
    return ROW.pack(position, message.id, message.where, len(message.body), deliveries, int(redelivered), 0)


def inline_row(position: int, number: int, body: bytes) -> bytes:
    return ROW.pack(position, number, 0, len(body), 0, 0, 0)


def inline_content(exchange: bytes, key: bytes, header: bytes, body: bytes, published_us: int) -> bytes:
    run = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key + header + body
    return struct.pack("<IIQ", len(run), len(header), published_us) + run
