"""The parts of a node that the HTTP service needs, in one place; and the service's own counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from typing import Any

from flintmq.pulls.pull_service import PullService
from flintmq.slotted import slotted


@slotted()
class Parts:
    """broker: broker.broker.Broker; pulls; actors: gauges of the actor system as a dict; store: the durable store's LogStore, or None;
    memory_limit: bytes held for clients at which publishers are blocked."""

    broker: Any
    pulls: PullService
    actors: Callable[[], dict[str, Any]]
    store: Any = None
    memory_limit: int = 2**63
    # the address or name that is listened on, and further names by which clients may call the broker (admin.auth)
    names: tuple[str, tuple[str, ...]] = ("127.0.0.1", ())
    # figures of the data plane (dataplane.service.Service.figures); None: this node has none
    pipeline: Callable[[], dict[str, Any]] | None = None
    # definitions.service.DefinitionsService
    definitions: Any = None
    # links.service.Links
    links: Any = None
    node_name: str = "flintmq@localhost"
    # (protocol, address, port) of all listeners; the port of HTTP
    listeners: Callable[[], list[tuple[str, str, int]]] = list
    http_port: Callable[[], int | None] = lambda: None
    # dataplane.backups.Backups, loaded by the call; None: nothing is on disk
    backups: Callable[[], Any] | None = None
    directory: Any = None  # of the store; None: nothing is on disk
    disk_reserve: int = 0  # bytes of the disk below which publishers are blocked
    # begins a stop of the process, as SIGTERM does; None: the broker is a part of another program
    stop: Callable[[], Callable[[], object] | None] = lambda: None
    is_stopping: bool = False  # it was begun
    is_tracing: bool = False  # somebody traces the passes of the loops (admin.v1_passes)
    started_s: float = field(default_factory=time.monotonic)
    # of the service itself
    requests: Counter[int] = field(default_factory=Counter)  # by status
    held: int = 0  # polls that wait now
    logins_refused: int = 0
    pools: Any = None  # admin.pools.Pools, once it runs
    forwarded: Any = None  # admin.forwarding.Forwarded.answer, once it runs
    links_of_http: Any = None  # admin.links.Links, once it runs
    connections: Callable[[], int] = lambda: 0
    # (address, port) of a client whose request waits for something else than the client -> what is done when its connection is lost
    leaving: dict[Any, Callable[[], object]] = field(default_factory=dict)
