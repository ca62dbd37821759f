"""`flintmq cluster`: the nodes of a cluster looked at, drained and forgotten, and queues given to other nodes, by any node or, when none
answers, by the engine itself.

in: a node's HTTP port and a user, or the URL of the engine. out: a table or JSON; orders, which the nodes carry out themselves.

Y1  What nodes say of themselves is checked before it is shown (shared/node_facts.py), so it is no command of a terminal.
Y2  Orders stand in the engine: a node that is gone, or can't reach it, obeys none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import click

from flintmq.cli.ctl import Remote
from flintmq.config import Limits
from flintmq.engines.earlier import refuse_earlier
from flintmq.engines.engine import EngineError, Unfit
from flintmq.engines.opening import open_engine
from flintmq.errors import OperatorError, PeerError
from flintmq.shared.engine_view import EngineView
from flintmq.shared.node_facts import DOWN, DRAINED

# queues: that the node owns; sign_age_s: seconds since its last sign of life
_COLUMNS = ("name", "state", "version", "amqp", "http", "flight", "left", "queues", "sign_age_s")
_QUEUE_COLUMNS = ("vhost", "name", "owner", "epoch", "messages")
# seconds between two looks at the awaited state
_LOOK_S = 0.5

Nodes = list[dict[str, Any]]


class Node:
    """The cluster as one of its nodes knows it."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def nodes(self) -> Nodes:
        answer = self._remote.ask("GET", "v1/cluster")
        if not answer["cluster"]:
            raise OperatorError("this node is in no cluster: start it with --cluster etcd://HOST:PORT,...", 65)
        nodes: Nodes = answer["nodes"]
        return nodes

    def drain(self, name: str) -> None:
        self._remote.ask("POST", f"v1/cluster/nodes/{quote(name, safe='')}/drain")

    def undrain(self, name: str) -> None:
        self._remote.ask("POST", f"v1/cluster/nodes/{quote(name, safe='')}/undrain")

    def remove(self, name: str) -> None:
        self._remote.ask("DELETE", f"v1/cluster/nodes/{quote(name, safe='')}")

    def queues(self) -> Nodes:
        queues: Nodes = self._remote.ask("GET", "v1/cluster/queues")["queues"]
        return queues

    def move(self, vhost: str, queue: str, to: str) -> None:
        self._remote.ask("POST", f"v1/cluster/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}/move", {"node": to})


class EngineItself:
    """The cluster as its engine has it. Args: runner: of the loop on which `view` is used."""

    def __init__(self, runner: asyncio.Runner, view: EngineView) -> None:
        self._run = runner.run
        self._view = view

    def nodes(self) -> Nodes:
        return self._run(self._view.nodes())

    def drain(self, name: str) -> None:
        self._run(self._view.order(name, True))

    def undrain(self, name: str) -> None:
        self._run(self._view.order(name, False))

    def remove(self, name: str) -> None:
        self._run(self._view.remove(name))

    def queues(self) -> Nodes:
        return self._run(self._view.queues())

    def move(self, vhost: str, queue: str, to: str) -> None:
        self._run(self._view.move(vhost, queue, to))


@contextlib.contextmanager
def _engine_itself(url: str) -> Iterator[EngineItself]:
    """Raises: OperatorError: 64 no engine of a cluster, 65 refused, or a row that can't be read, 69 it does not answer."""
    limits = Limits()
    try:
        engine = open_engine(url, limits)
    except ValueError as error:
        raise OperatorError(str(error), 64) from error
    if engine.limits.alone:
        raise OperatorError(f"{engine.name} is the engine of one node: a cluster is on etcd://..., postgresql://... or fdb:...", 64)
    try:
        with asyncio.Runner() as runner:
            try:
                runner.run(refuse_earlier(url, limits))
                yield EngineItself(runner, EngineView(engine, limits))
            finally:
                runner.run(engine.close())
    except PeerError as error:
        raise OperatorError(error.text, 65) from error
    except ValueError as error:
        raise OperatorError(str(error), 65) from error
    except EngineError as error:
        raise OperatorError(str(error) if isinstance(error, Unfit) else f"the engine does not answer: {error}", 69) from error


@click.group()
@click.option("--uri", envvar="FLINTMQ_URI", default="http://127.0.0.1:15672", show_default=True, help="The HTTP port of any node.")
@click.option("-u", "--user", envvar="FLINTMQ_USER", default="guest", show_default=True, help="Who asks; its tags decide what is allowed.")
@click.option("--password", envvar="FLINTMQ_PASSWORD", default="guest", help="Better the variable FLINTMQ_PASSWORD: others see arguments.")
@click.option("--engine", help="The engine itself, when no node answers: the URL of --cluster, or file:PATH with that.")
@click.pass_context
def cluster(context: click.Context, uri: str, user: str, password: str, engine: str | None) -> None:
    """Nodes that share an engine (docs/SHARED.md): which there are, drain one, forget one; owners of queues, and another one for one."""

    @contextlib.contextmanager
    def opened() -> Iterator[Node | EngineItself]:
        if engine is None:
            yield Node(Remote(uri, user, password))
            return
        with _engine_itself(engine) as store:
            yield store

    context.obj = opened


Opened = Callable[[], contextlib.AbstractContextManager[Node | EngineItself]]


def _cells(row: dict[str, Any], columns: tuple[str, ...]) -> list[str]:
    cells = [row[name] if name in row else row.get("addresses", {}).get(name) for name in columns]
    return ["-" if cell is None else str(cell) for cell in cells]


def _table(lines: Nodes, columns: tuple[str, ...]) -> list[str]:
    rows = [list(columns), *(_cells(line, columns) for line in sorted(lines, key=lambda line: str(line["name"])))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


@cluster.command("status")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
@click.pass_obj
def status(opened: Opened, as_json: bool) -> None:
    """The nodes and their states: up, draining, drained (it can be stopped), down. LEFT: connections and queues that a drain waits for."""
    with opened() as store:
        nodes = store.nodes()
    if as_json:
        click.echo(json.dumps({"nodes": nodes}))
        return
    for line in _table(nodes, _COLUMNS):
        click.echo(line)


@cluster.command("queues")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
@click.pass_obj
def queues(opened: Opened, as_json: bool) -> None:
    """The shared queues and the nodes that own them. MESSAGES: - where the owner did not say."""
    with opened() as store:
        lines = store.queues()
    if as_json:
        click.echo(json.dumps({"queues": lines}))
        return
    for line in _table(lines, _QUEUE_COLUMNS):
        click.echo(line)


@cluster.command("drain")
@click.argument("name")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when the node is drained.")
@click.option("--timeout", type=click.FloatRange(0), default=300.0, show_default=True, help="Seconds to wait.")
@click.pass_obj
def drain(opened: Opened, name: str, wait: bool, timeout: float) -> None:
    """Send the clients of node NAME to others, and its shared queues. Then stop it; after a restart it serves."""
    with opened() as store:
        store.drain(name)
        until = time.monotonic() + timeout
        while wait:
            node = next((one for one in store.nodes() if one["name"] == name), None)
            if node is None or node["state"] in (DRAINED, DOWN):
                break
            if time.monotonic() >= until:
                raise OperatorError(f"node {name!r} has {node['left']} connections and queues after {timeout:g} s; it goes on", 75)
            time.sleep(_LOOK_S)
    click.echo(f"node {name} is drained: it can be stopped" if wait else f"node {name} is being drained")


@cluster.command("undrain")
@click.argument("name")
@click.pass_obj
def undrain(opened: Opened, name: str) -> None:
    """Let node NAME, which is drained, serve again. Its queues come back only when they are moved."""
    with opened() as store:
        store.undrain(name)
    click.echo(f"node {name} serves again")


@cluster.command("move")
@click.argument("queue")
@click.argument("name")
@click.option("--vhost", default="/", show_default=True, help="Virtual host of the queue.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when the node owns the queue.")
@click.option("--timeout", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to wait.")
@click.pass_obj
def move(opened: Opened, queue: str, name: str, vhost: str, wait: bool, timeout: float) -> None:
    """Give the shared queue QUEUE to node NAME. Its consumers' connections are closed, publishers go on."""
    with opened() as store:
        store.move(vhost, queue, name)
        until = time.monotonic() + timeout
        while wait:
            owners = [one["owner"] for one in store.queues() if (one["vhost"], one["name"]) == (vhost, queue)]
            if owners == [name]:
                break
            if time.monotonic() >= until:
                raise OperatorError(f"queue {queue!r} is not node {name!r}'s after {timeout:g} s: the nodes' logs say why", 75)
            time.sleep(_LOOK_S)
    click.echo(f"queue {queue} is served by node {name}" if wait else f"queue {queue} is being moved to node {name}")


@cluster.command("remove")
@click.argument("name")
@click.pass_obj
def remove(opened: Opened, name: str) -> None:
    """Forget node NAME, which is down. One that comes back is a member again."""
    with opened() as store:
        store.remove(name)
    click.echo(f"node {name} is forgotten")
