"""A durable node inside the test, the data plane behind a real pair of channels, and kill -9 as a copy of its files."""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path
from typing import Any, Self

from flintmq.clock import ManualClock
from flintmq.config import Config
from flintmq.dataplane.wire import Channel, Refused
from flintmq.node import Node
from flintmq.ports import PermissionRecord, UserRecord
from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.transactions import BranchState
from flintmq.transactions.bulk import INLINE, ROW
from tests.drivers.store_driver import content_of
from tests.support import blocks
from tests.support.image import image_of

PERSISTENT = 1
_BODY_SIZE = struct.Struct(">HHQ")


class Rig:
    """A node that was not started (no loops, no listeners): what it does is what is called. Time stands still until `clock.advance`."""

    def __init__(self, directory: Path, *, clock: ManualClock | None = None, limits: dict[str, Any] | None = None, **options: Any) -> None:
        self.directory = directory
        self.clock = clock or ManualClock()
        self.limits, self.options = limits or {}, options
        config = Config(port=None, data_dir=str(directory), container_size=524_288, **options).with_limits(**self.limits)
        self.node = Node(config, self.clock)
        assert self.node.dataplane is not None
        self.broker = self.node.broker
        self.service = self.node.dataplane.service
        self.user = "guest"
        self.vhost = "/"
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours, config.limits)
        self._server = threading.Thread(target=self.service.serve, args=(Channel(theirs, config.limits),), daemon=True)
        self._server.start()
        self._before: threading.Thread | None = None  # the end of the node that was killed for this one: it may still write where it was

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> threading.Thread:
        """Ends the node, in a thread: its writer takes half a second to notice. That is over when those before it have ended, too."""
        self.channel.close()
        self._server.join(10)

        def end() -> None:
            self.node.stop()
            if self._before is not None:
                self._before.join()

        thread = threading.Thread(target=end)
        thread.start()
        return thread

    def kill(self) -> Rig:
        """kill -9 and a restart: the files as they are now, opened by another node. This one is over."""
        fresh = image_of(self.directory, self.directory.with_name(f"{self.directory.name}k"))
        ending = self.stop()
        again = Rig(fresh, clock=self.clock, limits=self.limits, **self.options)
        again._before = ending
        return again

    def restart(self) -> Rig:
        """A clean stop and a start."""
        self.stop().join()
        return Rig(self.directory, clock=self.clock, limits=self.limits, **self.options)

    def tick(self) -> None:
        """A housekeeping pass; what it wrote is durable and done when this returns."""
        self.service.tick(0)
        self.quiet()

    def quiet(self) -> None:
        """Everything that was written before is durable and done."""
        plane = self.service.plane
        plane.settle()
        plane.durable(plane.store.note(99, b"", b""))
        ending = {BranchState.ROLLING_BACK, BranchState.COMMITTING}
        while any(view.state in ending for view in plane.coordinator.list()):  # another thread is just taking it out
            plane.pause(0.001)

    # --- calls --------------------------------------------------------------------------------------------------------

    def ask(self, call: str, payload: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        head = {"user": self.user, "vhost": self.vhost, **arguments, "call": call}
        answer, data = self.channel.call(head, payload)
        return answer, bytes(data)

    def call(self, call: str, payload: bytes = b"", **arguments: Any) -> Any:
        return self.ask(call, payload, **arguments)[0]

    def code(self, call: str, payload: bytes = b"", **arguments: Any) -> str:
        """The code with which the call is refused; "" when it is not."""
        try:
            self.ask(call, payload, **arguments)
        except Refused as refused:
            assert refused.code != "INTERNAL", refused
            return refused.code
        return ""

    def twice(self, call: str, **arguments: Any) -> Any:
        """The answer of a call whose first answer was lost: both must be the same."""
        first = self.call(call, **arguments)
        assert self.call(call, **arguments) == first
        return first

    # --- queues -------------------------------------------------------------------------------------------------------

    def declare(self, *names: str, vhost: str = "/", durable: bool = True, **arguments: Any) -> None:
        for name in names:
            options = {key.replace("_", "-"): value for key, value in arguments.items()}
            self.broker.vhosts[vhost].run(self.broker.vhosts[vhost].declare_queue(name, durable=durable, arguments=options))

    def core(self, name: str, vhost: str = "/") -> Any:
        return self.broker.vhosts[vhost].queues[name].core

    def put(self, name: str, *bodies: str | bytes, persistent: bool = True, vhost: str = "/") -> list[int]:
        """Messages outside any transaction, durable when this returns. Returns their positions."""
        found = []
        for body in bodies:
            raw = body.encode() if isinstance(body, str) else body
            header = encode_properties(len(raw), {"delivery_mode": 2 if persistent else 1})
            found.append(self.core(name, vhost).publish(b"", name.encode(), header, raw, PERSISTENT if persistent else 0, 0))
        self.service.plane.settle()
        return found

    def bodies(self, name: str, vhost: str = "/") -> list[str]:
        """What a consumer would get now, in order."""
        core, found, position = self.core(name, vhost), [], 0
        while position := core.next_available(position + 1):
            found.append(core.message_at(position)[3].decode())
        return found

    def user_with(self, name: str, *, read: str = "", write: str = "", tags: tuple[str, ...] = (), vhost: str = "/") -> None:
        if self.node.users.get(name) is None:
            self.node.users.put(UserRecord(name, "", tags))
        self.node.permissions.set_permissions(PermissionRecord(name, vhost, "", write, read))

    # --- sets ---------------------------------------------------------------------------------------------------------

    def open(self, name: str = "s", *queues: str, **options: Any) -> dict[str, Any]:
        """sub.open. Returns the arguments that name the reader: sub_id and epoch."""
        answer = self.call("sub.open", name=name, queues=list(queues or ("q",)), **options)
        return {"sub_id": answer["sub_id"], "epoch": answer["epoch"]}

    def read(self, reader: dict[str, Any], seq: int, slices: int = 1) -> list[str]:
        """Bodies of the set, over all slices, asked for in small pieces."""
        found: list[str] = []
        for ticket in self.call("sub.plan", **reader, seq=seq, slices=slices)["tickets"]:
            found += self.rows(ticket)
        return found

    def rows(self, ticket: dict[str, Any], count: int = 2) -> list[str]:
        """Bodies of a ticket."""
        found: list[str] = []
        more = True
        while more:
            answer, data = self.ask("rows", **ticket, first=len(found), count=count)
            found += [row[-1].decode() for row in self.contents(answer, data)]
            more = answer["more"]
        return found

    def contents(self, answer: dict[str, Any], data: bytes) -> list[tuple[str, int, int, bytes]]:
        """(queue, position, id, body) of rows; contents from where the row says they stand."""
        return contents_of(answer, data, self.node.store.logs)  # type: ignore[union-attr]

    # --- stages -------------------------------------------------------------------------------------------------------

    def stage(self, scope: str, epoch: int, batch: int, *bodies: str, queue: str = "q", prepare: bool = True, **options: Any) -> str:
        """A stage with these messages for a queue. Returns its id."""
        stage_id: str = self.call("stage.begin", scope=scope, epoch=epoch, batch=batch, **options)["stage_id"]
        if bodies:
            self.call("block", block(*bodies), stage_id=stage_id, routes=[["", queue]])
        if prepare:
            self.call("stage.prepare", stage_id=stage_id)
        return stage_id


def contents_of(answer: dict[str, Any], data: bytes, logs: Any = None) -> list[tuple[str, int, int, bytes]]:
    """(queue, position, id, body) of rows. Args: logs: of the contents that are not inline."""
    number = sum(entry[1] for entry in answer["queues"])
    names = [entry[0] for entry in answer["queues"] for _ in range(entry[1])]
    at = number * ROW.size
    found = []
    for index, name in enumerate(names):
        position, message_id, where, body_len, _, _, _ = ROW.unpack_from(data, index * ROW.size)
        if where:
            body = content_of(logs, message_id).body
        else:
            length, header_len, _ = INLINE.unpack_from(data, at)
            run = data[at + INLINE.size : at + INLINE.size + length]
            exchange_len = run[0]
            key_len = run[1 + exchange_len]
            body = run[2 + exchange_len + key_len + header_len :]
            at += INLINE.size + length
        assert len(body) == body_len
        found.append((name, position, message_id, body))
    assert at == len(data)
    return found


def entry(body: str | bytes, route: int = 0, properties: dict[str, Any] | None = None) -> bytes:
    """One message of a block."""
    return blocks.entry(body.encode() if isinstance(body, str) else body, route, properties or {"delivery_mode": 2})


def block(*bodies: str, route: int = 0) -> bytes:
    """A block of persistent messages for one route."""
    return b"".join(entry(body, route) for body in bodies)
