"""Links of a node: begun, watched and ended as the parameters say, by a thread of its own and a process that moves the messages.

in: parameters that changed, users whose rights changed. out: links in the process; their states for the API.

N1  What should run is what the parameters say at this moment; the process is told the difference. A changed parameter is another link.
N2  A report counts only for the link that it is about: each life of a link has a number that is never used again.
N3  A process that died is started again, with back-off, and gets all links anew. Without a link there is no process.
N4  A URI's password leaves this module only to the process.
"""

from __future__ import annotations

import itertools
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from flintmq.config import Config
from flintmq.definitions.change_line import BROKER
from flintmq.guard import guarded
from flintmq.links.process import Process
from flintmq.links.rights import Rights, uris_in
from flintmq.links.wanted import SHOVEL, Finder, Key, Wanted, bindings, wants
from flintmq.moves import shovels
from flintmq.moves.control import ControlError
from flintmq.moves.uri import UriError, shown
from flintmq.moves.values import uris_of
from flintmq.routing.binding import EXCHANGE, QUEUE
from flintmq.slotted import slotted

log = logging.getLogger("flintmq.links")

WANTS = {"wants": True}
STARTING, RUNNING, TERMINATED = "starting", "running", "terminated"
# a user, a name of the connection -> one end of a connection to this node that is logged in as the user when it speaks AMQP
OpenLocal = Callable[[str, str], socket.socket]


@slotted()
class Link:
    """One link, as the broker knows it. Args: number: of this life (N2); started: the process has it; said: what it was told last."""

    number: int
    wanted: Wanted
    owner: str | None = None
    started: bool = False
    over: bool = False
    state: str = STARTING
    reason: str = ""
    moved: int = 0
    blocked: str = ""
    since: float = field(default_factory=time.time)
    uris: dict[str, str] = field(default_factory=dict)
    said: Any = None

    @property
    def title(self) -> str:
        return self.wanted.title

    def becomes(self, state: str, reason: str = "") -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason, self.since = state, reason, time.time()


class Links:
    """See module. Args: config; broker; definitions: the DefinitionsService; open_local; command: of the process (tests)."""

    def __init__(self, config: Config, broker: Any, definitions: Any, open_local: OpenLocal, command: Any = None) -> None:
        self._config = config
        self._limits = config.limits
        self._broker = broker
        self._definitions = definitions
        self._open_local = open_local
        self._command = command
        self.rights = Rights(broker, config.shovel_hosts)
        definitions.rights = self.rights
        self._finder = Finder(broker, definitions, self._limits.links_vhost_max)
        self._links: dict[Key, Link] = {}
        self._dirty = True
        self._routes: Any = None
        self._found_s = 0.0
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._anew: set[Key] = set()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._process: Process | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._pause_ms = self._limits.shovel_restart_ms
        self._start_at = 0.0

    # --- the node, the definitions service, the API: any thread ---------------------------------------------------------------

    def start(self) -> None:
        """Links that are kept begin. Definitions and listeners are there."""
        self._definitions.on_links = self.changed
        self.changed()

    def changed(self) -> None:
        """Parameters, users or permissions changed."""
        self._dirty = True
        if self._stopping or (self._thread is None and not self._definitions.of(SHOVEL) and not self._finder.federates()):
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="flintmq-links", daemon=True)
                self._thread.start()
        self._wake_up()

    def restart(self, key: Key) -> bool:
        """The link begins again. False: there is none."""
        with self._lock:
            is_known = key in self._links
            if is_known:
                self._anew.add(key)
        self._wake_up()
        return is_known

    def shovels(self) -> list[dict[str, Any]]:
        """RabbitMQ's status of each shovel, by vhost and name."""
        with self._lock:
            return [_shown_shovel(link) for key, link in sorted(self._links.items()) if key[0] == SHOVEL]

    def federation(self) -> list[dict[str, Any]]:
        """RabbitMQ's status of each link of federation."""
        with self._lock:
            return [_shown_link(link) for key, link in sorted(self._links.items()) if key[0] != SHOVEL]

    def find(self, vhost: str, link_id: str) -> Key | None:
        """The key of a link of federation, by its id in lists."""
        with self._lock:
            return next((key for key, link in self._links.items() if key[1] == vhost and link.wanted.id == link_id), None)

    def stop(self) -> None:
        """Links settle what is moved, and the process ends. Again is no error."""
        self._stopping = True
        thread = self._thread
        if thread is not None:
            self._wake_up()
            thread.join()
            self._thread = None
        with self._lock:
            if self._wake >= 0:
                self._selector.close()
                os.close(self._wake)
                self._wake = -1

    def _wake_up(self) -> None:
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    # --- the thread -----------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        looked = 0.0
        while not self._stopping:
            guarded("links", "parameters", self._compare)
            guarded("links", "the process", self._supervise)
            wait_s = self._limits.shovel_look_ms / 1000
            queues = [link for key, link in self._links.items() if key[0] == QUEUE]
            if queues:
                busy = any(link.said == WANTS for link in queues)
                look_ms = self._limits.federation_busy_ms if busy else self._limits.federation_look_ms
                wait_s = min(wait_s, look_ms / 1000)
            for key, _ in self._selector.select(wait_s):
                if key.fd == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    guarded("links", "reports", self._receive)
            if queues:
                guarded("links", "queues", self._tell_all)
            now = time.monotonic()
            if now - looked >= self._limits.shovel_look_ms / 1000:
                looked = now
                guarded("links", "rights", self._look)
        self._finish()

    def _compare(self) -> None:
        """N1. Definitions are looked at when some changed."""
        routes, now = self._broker.routes.version, time.monotonic()
        # Queues that come and go by the thousand don't have all names looked at each time.
        late = now - self._found_s >= self._limits.shovel_look_ms / 1000
        if self._dirty or self._anew or (late and routes is not self._routes):
            self._dirty, self._routes, self._found_s = False, routes, now
            self._adopt(self._finder.all())
            self._tell_all()
        for link in [one for one in self._links.values() if not one.started and not one.over]:
            guarded("links", link.title, self._begin, link)

    def _adopt(self, wanted: Mapping[Key, Wanted]) -> None:
        with self._lock:
            anew, self._anew = self._anew, set()
            gone = [key for key, link in self._links.items() if key in anew or key not in wanted or wanted[key].basis != link.wanted.basis]
            ended = [(self._links.pop(key), key in wanted) for key in gone]
            for key, one in wanted.items():
                if key not in self._links:
                    self._links[key] = Link(next(self._numbers), one)
        for link, stays in ended:
            self._tell_stop(link, unwanted=not stays)

    def _tell_all(self) -> None:
        """Bindings of federated exchanges, and whether federated queues want messages, where that changed."""
        for link in list(self._links.values()):
            if link.started and link.wanted.kind != SHOVEL:
                guarded("links", link.title, self._tell, link)

    def _tell(self, link: Link) -> None:
        thing, most = link.wanted.thing, self._limits.federation_bindings_max
        if link.wanted.kind == EXCHANGE and len(thing.bindings) > most:
            self._overdone(link, f"the exchange has more than {most} bindings, which a link does not pass on")
            return
        said: Any = {"bindings": bindings(thing)} if link.wanted.kind == EXCHANGE else {"wants": wants(thing)}
        # A link that may take messages is told so again at each look: it gets no more than its prefetch for each time.
        if said == link.said and not said.get("wants"):
            return
        try:
            if self._process is not None and self._process.send({"op": "tell", "link": link.number, **said}):
                link.said = said
        except ValueError as error:
            self._overdone(link, f"the bindings of the exchange are too large for a link: {error}")

    def _overdone(self, link: Link, reason: str) -> None:
        """The link rests until its parameter or its exchange is another one."""
        self._tell_stop(link)
        link.over = True
        link.number = next(self._numbers)
        self._refused(link, reason)

    def _refusal(self, link: Link) -> str | None:
        # Asked for each time: who is deleted owns nothing, and a new user of the name is another one.
        wanted = link.wanted
        link.owner = self._definitions.owner(wanted.component, wanted.vhost, wanted.parameter)
        try:
            return self.rights.refusal(link.owner, wanted.vhost, uris_in(wanted.component, wanted.value, wanted.vhost))
        except (UriError, KeyError, TypeError, ValueError):
            return "its parameter is not valid: set it again"

    def _begin(self, link: Link) -> None:
        """Tells the process of a link, when there is a process and the link may run."""
        wrong = self._refusal(link)
        if wrong is None:
            errors = link.wanted.errors()
            wrong = f"its parameter is not valid: {'; '.join(errors)}" if errors else None
        if wrong is None:
            wrong = self._limit(link)
        if wrong is not None:
            self._refused(link, wrong)
            return
        if self._process is None:
            return
        plan = link.wanted.plan(self._broker.cluster_name)
        link.said = None
        start = {"op": "start", "link": link.number, "name": link.title, "owner": link.owner or "", "plan": plan}
        link.started = self._process.send(start)
        if link.started and link.wanted.kind != SHOVEL:
            self._tell(link)

    def _limit(self, link: Link) -> str | None:
        """Links that run: of the node, and of a virtual host, whose federated queues make links without anybody setting one."""
        running = [one for one in self._links.values() if one.started]
        if len(running) >= self._limits.links_max:
            return f"the node runs {self._limits.links_max} links, which is the limit"
        if sum(one.wanted.vhost == link.wanted.vhost for one in running) >= self._limits.links_vhost_max:
            return f"vhost '{link.wanted.vhost}' runs {self._limits.links_vhost_max} links, which is the limit"
        return None

    def _refused(self, link: Link, reason: str) -> None:
        if link.reason != reason:
            log.warning("%s: %s", link.title, reason)
        with self._lock:
            link.becomes(TERMINATED, reason)

    def _tell_stop(self, link: Link, unwanted: bool = False) -> None:
        if link.started and self._process is not None:
            self._process.send({"op": "stop", "link": link.number, "unwanted": unwanted})
        link.started = False

    def _look(self) -> None:
        """R1: owners may have lost their rights, or got them back."""
        for link in list(self._links.values()):
            if link.started and not link.over:
                wrong = self._refusal(link)
                if wrong is not None:
                    self._tell_stop(link)
                    # a report of the life that ends here counts no more
                    link.number = next(self._numbers)
                    self._refused(link, wrong)

    # --- the process ------------------------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """N3."""
        wanted = any(not link.over for link in self._links.values())
        if self._process is None and wanted and time.monotonic() >= self._start_at:
            self._start_at = time.monotonic() + self._pause_ms / 1000
            self._pause_ms = min(2 * self._pause_ms, self._limits.shovel_restart_ms_max)
            self._process = Process(self._config, self._command)
            self._selector.register(self._process.channel, selectors.EVENT_READ)
            log.info("process %d moves messages of shovels", self._process.pid)
            self._compare()
        elif self._process is not None and not self._links:
            self._end_process()
            self._pause_ms = self._limits.shovel_restart_ms

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._selector.unregister(process.channel)
            code = process.end()
            log.info("the process that moved messages is gone (exit code %d)", code)

    def _receive(self) -> None:
        process = self._process
        if process is None:
            return
        try:
            messages = process.receive()
        except ControlError as error:
            log.error("the process that moves messages: %s", error)
            messages = None
        if messages is None:
            log.error("the process that moves messages ended: it is started again")
            self._end_process()
            with self._lock:
                for link in self._links.values():
                    if link.started:
                        link.started = False
                        link.number = next(self._numbers)
                        link.becomes(STARTING)
            return
        for message in messages:
            guarded("links", "a report", self._obey, process, message)

    def _obey(self, process: Process, message: dict[str, Any]) -> None:
        verb = message["op"]
        link = next((one for one in self._links.values() if one.number == message["link"]), None)
        if verb == "ask":
            self._answer(process, link, message)
        elif link is None:
            return  # N2
        elif verb == "state":
            with self._lock:
                link.becomes(message["state"], message.get("reason", ""))
                link.moved = message["moved"]
                link.uris = {name: message[name] for name in ("src_uri", "dest_uri") if name in message}
            if message["state"] == RUNNING:
                self._pause_ms = self._limits.shovel_restart_ms
        elif verb == "count":
            with self._lock:
                link.moved, link.blocked = message["moved"], message["blocked"]
        elif verb == "ended":
            self._ended(link, message["finished"])

    def _ended(self, link: Link, finished: bool) -> None:
        """It moved all that it should: its parameter goes, if it still is the one that the link began with. Else it may not try again."""
        link.over, link.started = True, False
        if finished:
            log.info("%s: it moved %d messages, as its delete-after says, and is deleted", link.title, link.moved)
            wanted = link.wanted
            self._definitions.delete_parameter(
                BROKER, SHOVEL, wanted.vhost, wanted.name, lambda result, error: self.changed(), only=wanted.record
            )

    def _answer(self, process: Process, link: Link | None, message: dict[str, Any]) -> None:
        """What a link may reach, asked before each connection."""
        number = message["number"]
        wrong = "the link is not there any more" if link is None else self._refusal(link)
        if wrong is not None or link is None or link.owner is None:
            process.send({"op": "refuse", "number": number, "text": wrong or "nobody owns it"})
            return
        handed = None
        if message["local"]:
            try:
                handed = self._open_local(link.owner, f"{link.title} ({message['side']})")
            except OSError as error:
                process.send({"op": "refuse", "number": number, "text": f"no connection to this node: {error.strerror or error}"})
                return
        process.send({"op": "grant", "number": number, "hosts": self.rights.reachable(link.owner)}, handed)

    def _finish(self) -> None:
        """The process settles what is moved before it ends: its channel closes here, and the connections of this node still live."""
        guarded("links", "the process", self._end_process)
        self._selector.close()


def _stamp(link: Link) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(link.since))


def _shown_shovel(link: Link) -> dict[str, Any]:
    members: dict[str, Any] = {
        "name": link.wanted.name,
        "vhost": link.wanted.vhost,
        "type": "dynamic",
        "state": link.state,
        "timestamp": _stamp(link),
        "owner": link.owner,
        "moved": link.moved,
        **link.uris,
    }
    if isinstance(link.wanted.value, Mapping):
        members |= shovels.shown(link.wanted.value)
    if link.reason:
        members["reason"] = link.reason
    if link.state == RUNNING:
        members["blocked_status"] = "blocked" if link.blocked else "running"
    return members


def _shown_link(link: Link) -> dict[str, Any]:
    wanted = link.wanted
    members: dict[str, Any] = {
        wanted.kind: wanted.name,
        f"upstream_{wanted.kind}": wanted.value.get(wanted.kind) or wanted.name,
        "type": wanted.kind,
        "vhost": wanted.vhost,
        "upstream": wanted.upstream,
        "id": wanted.id,
        "status": "error" if link.state == TERMINATED else link.state,
        "timestamp": _stamp(link),
        "owner": link.owner,
        "moved": link.moved,
        "uri": link.uris.get("src_uri") or shown(uris_of(wanted.value["uri"])[0]),
    }
    if wanted.kind == QUEUE:
        members["consumer_tag"] = wanted.value["consumer-tag"]
    if link.reason:
        members["error"] = link.reason
    if link.state == RUNNING:
        members["local_connection"] = f"{link.title} (destination)"
    return members
