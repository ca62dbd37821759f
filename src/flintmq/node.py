"""The composition root: puts the parts of one broker node together, starts and stops them. The only module that knows them all.

Threads: `io_threads` loops (default 1), each with its connections; the first accepts. The thread that calls `run` waits for
signals.
"""

from __future__ import annotations

import itertools
import logging
import os
import platform
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter, length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flintmq import __version__
from flintmq.access.mechanisms import SCRAM
from flintmq.access.permissions import Permissions
from flintmq.access.users import Users, default_user, is_loopback
from flintmq.admin.parts import Parts
from flintmq.admin.server import HttpServer
from flintmq.broker.broker import Broker
from flintmq.broker.memory_keeper import MemoryKeeper
from flintmq.broker.spans import Spans
from flintmq.broker.stream_service import StreamService
from flintmq.broker.token_logins import TokenLogins
from flintmq.channel.connection import Connection, revoke_authorizations
from flintmq.channel.weights import TLS_BYTES
from flintmq.clock import Clock, SystemClock
from flintmq.config import Config
from flintmq.config.units import amount
from flintmq.core.memory_account import bytes_held
from flintmq.dataplane.in_log import PIPELINE_FORMATS
from flintmq.dataplane.node_part import DataPlane
from flintmq.definitions.verbs import DefinitionsService
from flintmq.endpoint import endpoint
from flintmq.errors import OperatorError, PeerError, ReplyCode, StoreError
from flintmq.guard import guarded
from flintmq.links.node_links import Links
from flintmq.net import proxy, unix_socket
from flintmq.net.descriptors import shares
from flintmq.net.loop import Loop
from flintmq.net.sockets import accept
from flintmq.ports import Definitions
from flintmq.protocol.v0_9_1.codec import Timestamp
from flintmq.pulls.pull_service import PullService
from flintmq.queue import kinds
from flintmq.scheduler.system import ActorSystem
from flintmq.session import handshake
from flintmq.session.handlers import ConnectionHandler
from flintmq.store.definitions import MemoryDefinitions
from flintmq.store.directory import container_size, open_directory

if TYPE_CHECKING:
    import ssl

    from flintmq.store.log_store import LogStore
    from flintmq.store.sql.definitions import SqlDefinitions

log = logging.getLogger("flintmq.node")

# connections that one slice of housekeeping looks at
ROUND_STEP = 32
_SOCKET_COUNT = attrgetter("socket_count")
# the embedded engine's file in the store directory, and the one of versions whose shared queues are rows of single messages
SHARED_FILE, OLD_SHARED_FILE = "shared_queues.db", "shared.db"


def memory_available() -> int:
    """Bytes this process may use: the smaller of the cgroup's limit and the machine's memory."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            return min(machine, int(text))
    return machine


class DurableStore:
    """Definitions and logs of one node, which belong together. Made by `open`.

    Order at the start: directory, lock (`LogStore.open`), SQL, logs; the definitions are read before the logs, since recovery asks which
    queues there are. Order at the stop: the logs, then SQL.
    """

    def __init__(self, directory: Path, definitions: SqlDefinitions, logs: LogStore) -> None:
        self.directory = directory
        self.definitions = definitions
        self.logs = logs

    @classmethod
    def open(cls, config: Config, clock: Clock, timestamp: Any, actors: Any = None, first: Sequence[Any] = ()) -> DurableStore:
        """Args: timestamp: the codec's type of timestamps in argument tables; actors: the node's ActorSystem, stopped after the store;
        first: records (users, permissions) that a new store is made with.

        Raises: OperatorError (directory, database), StoreError (logs).
        """
        from flintmq.store.log.file_port import OsFiles
        from flintmq.store.log_store import LogStore, missing_text
        from flintmq.store.sql.definitions import SqlDefinitions

        directory = open_directory(config)
        size = container_size(config)
        definitions = SqlDefinitions.open(directory, config.connect, config.catalog, clock, config.limits, timestamp=timestamp, first=first)
        try:
            definitions.reserve_ids()
            known = definitions.queue_ids()
            if known and not (directory / "messages").is_dir():
                raise StoreError(missing_text(str(directory / "messages"), f"the definitions know {len(known)} durable queues"))
            files: Any = OsFiles  # compiled: its arguments are not seen by mypy
            logs = LogStore.open(
                files(config.direct_io),
                str(directory),
                container_size=size,
                initial_containers=max(2, config.initial_containers),
                max_write_buffers=max(1, config.max_write_buffers),
                disk_free_limit=config.disk_free_limit or 0,
                store_uuid=definitions.store_uuid,
                known_queues=known,
                queue_high_water=definitions.queue_id_high_water,
                clock=clock,
                retain_bytes=config.log_retain_bytes,
                retain_s=config.log_retain_age,
                hot_bytes=config.limits.queue_hot_bytes,
                content_bytes=content_memory(config),
                rest_least=config.limits.queue_rest_bytes_least,
                archive_dir=str(Path(config.log_archive_dir).absolute()) if config.log_archive_dir else None,
                actors=actors,
                limits=config.limits,
            )
        except OSError as error:
            definitions.close()
            raise StoreError(f"{error.filename or directory}: {error.strerror}") from error
        except BaseException:
            definitions.close()
            raise
        # Whether the queue that a lost commit was about still exists, nobody knows: nothing may be confirmed for it any more.
        definitions.on_failure(logs.failed)
        return cls(directory, definitions, logs)

    def restore(self, queues: Any, log_stream: Callable[[int], object]) -> int:
        """Puts the recovered entries into the cores of these durable queues; a stream's are those that it lacks of what transactions
        committed, and `log_stream` hears of its id. Returns how many."""
        restored = 0
        for queue in queues:
            if not queue.policy.is_stream:
                restored += self.logs.restore(queue.core)
            elif waiting := self.logs.restore_inbox(queue.queue_id):
                log_stream(queue.queue_id)
                log.info("stream '%s': %d messages of committed transactions are looked for in it", queue.name, waiting)
        self.logs.restored()
        return restored

    def close(self, clean: bool) -> None:
        """clean: all connections are gone and nothing is under way."""
        self.logs.close(clean)
        self.definitions.close()


def memory_limit(config: Config) -> int:
    """Bytes held for clients (core.memory_account) at which publishers are blocked."""
    return config.memory_limit or int(memory_available() * config.limits.memory_watermark)


def content_memory(config: Config) -> int:
    """Bytes of contents in memory below which a queue keeps more than its window."""
    if config.content_memory is not None:
        return config.content_memory
    return min(int(memory_limit(config) * config.limits.content_memory_share), config.limits.content_memory_max)


class Node:
    """One broker.

    Args: config: what was asked for; clock: time port (tests give a manual one); store_log: the durable store's log port.
    Raises: OperatorError when a port is taken or a certificate can't be read.
    """

    def __init__(self, config: Config, clock: Clock | None = None, store_log: Any = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        limits = config.limits
        self.memory_limit = memory_limit(config)
        # of AMQP, and of HTTP, which asks nobody for a certificate: a browser would ask its user
        self.tls = self._tls_context(config)
        self.http_tls = self._tls_context(config, of_clients=False)
        # where connections begin with a header of the PROXY protocol
        self._proxies = proxy.networks(config.proxy_from)
        self._http_proxies = proxy.networks(config.http_proxy_from, "--http-proxy-from")
        # Work that must not run on I/O loops: cold reads, streams, pulls. Stopped last.
        self.actors = ActorSystem(limits)
        self.store: DurableStore | None = None
        self.failure: StoreError | None = None
        self.failed = threading.Event()
        # definitions that other nodes have, too: None: this node's alone
        self._told: Any = None
        self._to_nodes: ssl.SSLContext | None = None
        self.following: Any = None
        # `serve` sets it: an operator's request to stop becomes a signal; None: this node is a part of another program
        self.stop_process: Callable[[], object] | None = None
        # before a stop: (seconds at most) its clients and queues go to other nodes of the cluster
        self._leave: Callable[[float], object] = bool
        definitions: Definitions = MemoryDefinitions()
        # A new store has one user, guest, and it is let in from this machine only; an old one has those it was left with, if any.
        permission, guest = default_user("/")
        if config.memory:
            definitions.save_permission(permission)
            definitions.save_user(guest)
        else:
            self.store = DurableStore.open(config, self.clock, Timestamp, self.actors, (permission, guest))
            definitions = self.store.definitions
            store_log = self.store.logs
        try:
            self._make_parts(definitions, store_log)
        except BaseException:
            # A process that goes on without this node gets the store's threads, files and lock back.
            if self.store is not None:
                self.store.close(clean=False)
            raise
        self.listeners: list[socket.socket] = []
        self.amqp_port: int | None = None
        self.amqps_port: int | None = None
        self.websocket_port: int | None = None
        self._tls_listener: socket.socket | None = None
        self._unix_listener: socket.socket | None = None
        self._unix_inode = 0
        self._websocket_listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        # loop -> when its timer ran last (monotonic)
        self._seen_ms: dict[int, int] = {}
        self._accept_logged_ms = 0
        # loops whose connections are being looked at
        self._rounds: set[Loop] = set()
        self._stopped = threading.Event()
        self.refused = 0
        self.evicted = 0

    def _make_parts(self, definitions: Definitions, store_log: Any) -> None:
        """The parts that stand on the open store."""
        config = self.config
        if config.cluster is not None:
            definitions = self._tell_others(definitions)
        if self.store is not None:
            self.store.logs.on_failure = self._store_failed
            if self.store.logs.failure is not None:  # the writer's first write, which nobody could be told of yet
                self._store_failed(self.store.logs.failure)
        self.users = Users(definitions, self.clock, config.limits, scram=SCRAM in config.auth_mechanisms)
        self.permissions = Permissions(definitions)
        kinds.load_installed()  # before queues are restored
        name = config.node_name or f"flintmq@{socket.gethostname()}"
        self.broker = Broker(config, self.clock, definitions, self.users, self.permissions, name, self.memory_limit)
        self.broker.node_name = name
        self.permissions.on_changed = self.users.on_changed = self._rights_changed
        self.broker.log = store_log
        self.tokens = self._token_logins()
        self._ask_directory()
        self.exporter = self._span_exporter(name)
        self.definitions = DefinitionsService(self.broker)
        self.users.on_keys = self.definitions.keep_keys
        self._restore()
        if self.store is not None and self.store.logs.failure is not None:
            raise self.store.logs.failure
        # What a pipeline's decision left to do is done before any listener opens.
        self.dataplane = None if self.store is None else DataPlane(config, self.broker, self.store.logs, actors=self.actors)
        self.descriptors = shares(config.limits)
        self.broker.quotas.set_connections(min(config.limits.connections_max, self.descriptors.amqp))
        self.pulls = PullService(self.broker, self.actors)
        self.broker.on_housekeeping.append(self.pulls.tick)
        self.links = Links(config, self.broker, self.definitions, self._open_local)
        self.http: HttpServer | None = None
        if config.http_port is not None:
            logs = None if self.store is None else self.store.logs
            names = (config.host, config.http_hosts)
            pipeline = None if self.dataplane is None else self.dataplane.figures
            parts = Parts(self.broker, self.pulls, self.actor_figures, logs, self.memory_limit, names, pipeline)
            parts.definitions = self.definitions
            parts.links = self.links
            parts.stop = lambda: self.stop_process
            parts.node_name = name
            parts.listeners = self.listening
            parts.http_port = lambda: self.http_port
            parts.backups = None if self.dataplane is None else self.dataplane.open_backups
            parts.directory = None if self.store is None else self.store.directory
            parts.disk_reserve = self._disk_needed
            served = config.with_limits(http_connections_max=self.descriptors.http)
            self.http = HttpServer(served, parts, self.http_tls, self._http_reader if self._http_proxies else None)
            if self.following is not None:
                self.broker.shared.on_call = self.http.answer
        self.loops = [Loop(config, self.memory_limit) for _ in range(config.io_threads)]
        self.broker.loops.start(self.loops)
        self._turns = itertools.cycle(self.loops)  # which loop serves the next connection
        if store_log is not None:
            for loop in self.loops:
                loop.attach_log(store_log)
        self.memory = MemoryKeeper(self.broker, self.loops, self.memory_limit)
        self.broker.memory = self.memory

    def _tell_others(self, definitions: Definitions) -> Any:
        from flintmq.cluster.told import ToldDefinitions

        self._told = ToldDefinitions(definitions)
        return self._told

    def _follow_others(self, shared: Any) -> None:
        from flintmq.cluster.following import Following
        from flintmq.cluster.view import ClusterView

        try:
            cluster = ClusterView(shared, self._advertised_host(), self.broker.attachments.cancel)
        except ValueError as error:
            raise OperatorError(f"--cluster: {error}") from None
        shared.member = self.broker.cluster = cluster
        self._leave = cluster.leave
        self.following = Following(self.broker, self.definitions, shared, self._told)

    def _rights_changed(self) -> None:
        """Users or permissions changed: what was granted before is asked for again. Any thread."""
        self.broker.routes.rights_changed()
        revoke_authorizations()
        for follower in self.broker.on_rights_changed:
            follower()

    def _token_logins(self) -> TokenLogins | None:
        """Logins by OAuth 2, when they are asked for. Raises: OperatorError."""
        if self.config.oauth_resource_server_id is None:
            return None
        try:
            from flintmq.access.oauth import OAuth
        except ImportError as error:
            text = f"--oauth-resource-server-id needs the extra 'oauth' (pip install flintmq[oauth]): {error.name} is not there"
            raise OperatorError(text) from error
        tokens = self.broker.tokens = TokenLogins(self.broker, OAuth(self.config, self.clock, self.users.is_user))
        self.broker.on_housekeeping.append(tokens.tick)
        self.broker.quotas.expect_others()
        return tokens

    def _ask_directory(self) -> None:
        """Logins by LDAP, when they are asked for. Raises: OperatorError."""
        if not self.config.ldap_urls:
            return
        from flintmq.access.ldap import Directory

        self.users.directory = Directory(self.config, self.clock, self.users.get, self.users.throttle)
        self.broker.quotas.expect_others()

    def _span_exporter(self, name: str) -> Any:
        """Sends spans of messages, when they are asked for. Raises: OperatorError."""
        endpoint = self.config.otel_endpoint
        if endpoint is None:
            return None
        from flintmq.otel.exporter import Exporter

        self.broker.spans = Spans(self.config.limits, self.config.otel_sample)
        return Exporter(self.broker.spans, endpoint, name, __version__, self.config.limits)

    def _restore(self) -> None:
        """Definitions, then what the logs hold for them, then transactions in doubt."""
        if self.store is not None:
            self.broker.open_transactions(self.store.logs)
            self.broker.streams = StreamService(self.broker, self.broker.dead_letters, self.store.logs.streams, self.actors)
            url = self.config.cluster
            if url is None and (self.store.directory / OLD_SHARED_FILE).exists():
                raise OperatorError(
                    f"{self.store.directory / OLD_SHARED_FILE} has shared queues as an earlier FlintMQ wrote them: "
                    "let consumers empty them with the version that wrote them, then move that file away"
                )
            if url is None:
                self.broker.make_shared = partial(self._shared_service, f"sqlite:{self.store.directory}/{SHARED_FILE}")
            else:
                shared = self.broker.shared = self._shared_service(url)
                self._follow_others(shared)
        try:
            for name in self.definitions.load():
                vhost = self.broker.add_vhost(name)
                self.definitions.prepare(vhost)
                vhost.restore()
        except PeerError as error:  # a stream that can't be opened
            raise OperatorError(error.text, 69) from error
        self.definitions.restore_pauses()
        if self.store is None:
            return
        assert self.broker.branch_queues is not None
        ours = [queue for queue in self.broker.queues.values() if not queue.policy.is_shared]
        restored = self.store.restore(ours, self.broker.branch_queues.core)
        self.broker.restore_entries(self.store.logs)
        read = "from a checkpoint, " if self.store.logs.from_checkpoint else ""
        log.info("store %s: %s%s; %d entries put back", self.store.directory, read, self.store.logs.report, restored)
        if self.broker.transactions is not None and self.broker.transactions.restore():
            # Those of the pipeline have theirs: the data plane, which comes next.
            waiting = [str(xid) for xid in self.broker.transactions.recover() if xid.format not in PIPELINE_FORMATS]
            if waiting:
                log.warning("transactions wait for their manager's decision: %s", ", ".join(waiting))

    def _shared_service(self, url: str) -> Any:
        """Of shared queues on the engine with that URL. Raises: OperatorError: there is no such engine."""
        from flintmq.cluster.engine_thread import check_engine
        from flintmq.cluster.shared_queues import SharedQueues

        assert self.store is not None
        broker, index = self.broker, self.broker.expiry.index
        # Nodes of one machine have one name, unless they are given others.
        name = self.config.node_name or f"{broker.node_name}-{self.store.definitions.store_uuid.hex()[:8]}"
        try:
            if self.config.cluster is not None:
                check_engine(url, self.config.limits)
            shared = SharedQueues(broker, broker.dead_letters, broker.pauses, url, self.store.logs, index, name)
        except ValueError as error:
            raise OperatorError(f"--cluster: {error}") from None
        shared.where = self.advertised
        config = self.config
        if config.cluster_ca is not None and config.tls_cert is not None:
            from flintmq.net.tls import client_context

            shared.ownership.secure = self._to_nodes = client_context(config.cluster_ca, config.tls_cert, config.tls_key)
        return shared

    def _advertised_host(self) -> str:
        host = self.config.advertise_host or self.config.host
        return socket.gethostname() if host in ("0.0.0.0", "::") else host

    def advertised(self) -> dict[str, str]:
        """Where other machines reach this node: service -> host:port. Any thread."""
        host = self._advertised_host()
        flight = None if self.dataplane is None else self.dataplane.flight_port
        ports = {"amqp": self.amqp_port, "amqps": self.amqps_port, "http": self.http_port, "flight": flight}
        return {service: endpoint(host, port) for service, port in ports.items() if port}

    # --- start ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Opens the listeners and starts the loops; connections are accepted when this returns."""
        config = self.config
        tls_listener = plain = None
        if self.tokens is not None:
            self.tokens.oauth.start()
        if self.exporter is not None:
            self.exporter.start()
        if self.http is not None:
            self.http.open()
        if config.port is not None:
            plain = self._listen(config.port, "amqp")
            self.amqp_port = plain.getsockname()[1]
            self.broker.listen_name = endpoint(config.host, self.amqp_port)
        if self.tls is not None and config.tls_port is not None:
            tls_listener = self._listen(config.tls_port, "amqps")
            self.amqps_port = tls_listener.getsockname()[1]
        if config.websocket_port is not None:
            self._websocket_listener = self._listen(config.websocket_port, "ws")
            self.websocket_port = self._websocket_listener.getsockname()[1]
        if config.unix_socket is not None:
            self._unix_listener = unix_socket.listen(config.unix_socket, config.unix_socket_mode)
            self._unix_inode = os.lstat(config.unix_socket).st_ino
        first = self.loops[0]
        for listener in (plain, tls_listener, self._websocket_listener, self._unix_listener):
            if listener is not None:
                self.listeners.append(listener)
        if self.following is None:
            self._let_in()
        self._tls_listener = tls_listener
        self.actors.start()
        if self.broker.shared is not None:
            self.broker.shared.follow()
        for number, loop in enumerate(self.loops):
            loop.on_accept = self._accept
            loop.on_timer = partial(self._tick, loop, number == 0)
            loop.on_alarm = partial(self._alarm, loop)
            thread = threading.Thread(target=loop.run, name=f"flintmq-io-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        if self.following is not None:
            if not self.following.start():
                log.warning("the engine of the cluster does not say what is defined: clients are let in with what this node knew")
            first.call(self._let_in)
        if self.broker.streams is not None:
            self.broker.streams.start()
        if self.dataplane is not None:
            self.dataplane.start()
        self.broker.expiry.start(first.job)
        self.broker.schedules.start()
        if self.broker.log_exchange is not None:
            self.broker.log_exchange.open()
        self.pulls.start()
        self.memory.start()
        if self.http is not None:
            self.http.start()
        self.links.start()

    def _let_in(self) -> None:
        for listener in self.listeners:
            self.loops[0].add_listener(listener)

    @property
    def http_port(self) -> int | None:
        """Where HTTP is served; None: it is off."""
        return None if self.http is None else self.http.port

    @property
    def metrics_port(self) -> int | None:
        """Where metrics alone are served; None: nowhere."""
        return None if self.http is None else self.http.metrics_port

    def listening(self) -> list[tuple[str, str, int]]:
        """(protocol, address, port) of all listeners, with RabbitMQ's names."""
        ports = [
            ("amqp", self.amqp_port),
            ("amqp/ssl", self.amqps_port),
            ("http/web-amqp" if self.tls is None else "https/web-amqp", self.websocket_port),
            ("http" if self.tls is None else "https", self.http_port),
            ("http/prometheus" if self.tls is None else "https/prometheus", self.metrics_port),
        ]
        if self.broker.draining:
            del ports[:-2]
        return [(protocol, self.config.host, port) for protocol, port in ports if port is not None]

    @staticmethod
    def _tls_context(config: Config, of_clients: bool = True) -> ssl.SSLContext | None:
        """Args: of_clients: their certificates are asked for, as configured."""
        if not config.tls_cert:
            return None
        from flintmq.net.tls import server_context  # with OpenSSL, which a broker without TLS never loads

        if not of_clients:
            return server_context(config.tls_cert, config.tls_key)
        return server_context(config.tls_cert, config.tls_key, config.tls_ca, config.tls_require_client)

    def reload_tls(self) -> None:
        """Reads the certificate files again: connections that come from now on see them. Raises: OperatorError, and nothing has changed."""
        config = self.config
        context = self._tls_context(config)
        if context is None or self.http_tls is None or config.tls_cert is None:
            return
        for held in (self.http_tls, self._to_nodes):  # in place: the HTTP server, and the connections to other nodes, hold them
            if held is not None:
                held.load_cert_chain(config.tls_cert, config.tls_key)
        self.tls = context

    def actor_figures(self) -> dict[str, Any]:
        """Gauges of the actor system; `cold_reads`: figures of the store's cold reader."""
        figures: dict[str, Any] = dict(self.actors.gauges())
        if self.store is not None:
            figures["cold_reads"] = self.store.logs.loader.figures
        return figures

    def is_alive(self) -> bool:
        """Whether every I/O loop has come round lately: what the service manager's watchdog is told."""
        limit_ms = self.config.limits.loop_alive_ms
        return all(time.monotonic_ns() // 1_000_000 - seen < limit_ms for seen in self._seen_ms.values())

    def flight_port(self, given_up: Callable[[], bool] = lambda: False) -> int | None:
        """The port of the Flight service, on demand at once, else after some seconds; None: there is none, it is not up in time, or
        `given_up()`."""
        return None if self.dataplane is None else self.dataplane.wait_ready(given_up)

    def _listen(self, port: int, name: str) -> socket.socket:
        """A listener: the one of that name that was inherited, else one on `port`."""
        for known, fd in self.config.inherited:
            if known == name:
                listener = socket.socket(fileno=fd)
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                listener.setblocking(False)
                return listener
        family = socket.AF_INET6 if ":" in self.config.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        try:
            listener.bind((self.config.host, port))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            where = endpoint(self.config.host, port)
            text = f"cannot listen on {where}: {error.strerror}. Choose another --port (0 picks a free one) or --host."
            raise OperatorError(text, 69) from error
        listener.setblocking(False)
        return listener

    # --- connections (loop threads) -----------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        """Accepts one connection. The listener stays ready while more wait, so each gets its turn among the sockets of a pass."""
        try:
            peer = accept(listener.fileno()) if listener is not self._unix_listener else unix_socket.accept(listener)
        except OSError as error:
            self._accept_failed(error)
            return
        if peer is None:
            return
        limits = self.config.limits
        full = sum(map(_SOCKET_COUNT, self.loops)) >= self.descriptors.amqp
        if full or len(self.broker.pending) >= limits.unauthenticated_connections_max:
            full = not self._evict()
        if full or len(self.broker.connections) >= limits.connections_max:
            self.refused += 1
            os.close(peer[0])
            return
        loop = next(self._turns)
        secure = listener is self._tls_listener
        layered = None
        if self._proxies or listener is self._websocket_listener:
            layered = self._layered(listener, peer[1])
            secure = secure or (listener is self._websocket_listener and self.tls is not None)
        if loop.is_current():
            self._serve(loop, *peer, secure, None, layered)
        else:
            loop.call(partial(self._serve, loop, *peer, secure, None, layered))

    def _layered(self, listener: socket.socket, host: str) -> Callable[[ConnectionHandler, Any], Any] | None:
        """The function that makes the layers of a connection out of its TLS layer (or None), when it has more than that."""
        proxied = listener is not self._unix_listener and proxy.is_trusted(host, self._proxies)
        limits, config = self.config.limits, self.config

        def layers(handler: ConnectionHandler, tls: Any) -> Any:
            made = tls
            if listener is self._websocket_listener:
                from flintmq.net.websocket import WebSocketLayer

                inner = WebSocketLayer(limits.websocket_head_max, config.websocket_origins)
                made = inner if made is None else proxy.Layers(made, inner)
            if proxied:
                outer = proxy.ProxyLayer(partial(self._proxied, handler), host, limits.proxy_header_max, is_loopback)
                made = outer if made is None else proxy.Layers(outer, made)
            return made

        return layers if proxied or listener is self._websocket_listener else None

    def _http_reader(self, host: str, on_source: proxy.OnSource) -> proxy.ProxyLayer | None:
        """What reads the header of a trusted proxy in front of HTTP; None: this peer is none."""
        if not proxy.is_trusted(host, self._http_proxies):
            return None
        return proxy.ProxyLayer(on_source, host, self.config.limits.proxy_header_max, is_loopback)

    def _proxied(self, handler: ConnectionHandler, source: tuple[str, int] | None) -> None:
        """A trusted proxy has said whom it speaks for (None: itself): that is the peer from now on. On the connection's loop."""
        if source is None or handler.ended:
            return
        self.broker.pending.discard(handler)
        handler.peer_host, handler.peer_port = source
        handler.name = f"{endpoint(*source)} -> {self.broker.listen_name}"
        self.broker.pending.add(handler)

    def _evict(self) -> bool:
        """Cuts off a connection that has not finished its handshake, to make room for another. False: there is none."""
        oldest = self.broker.pending.evict()
        if oldest is None:
            return False
        self.evicted += 1
        self.broker.loops.run_on(oldest, oldest.evict)
        return True

    def _accept_failed(self, error: OSError) -> None:
        """No descriptor (or no memory) for another connection: nobody is accepted until the next tick, or until one is free."""
        self.loops[0].accept(False)
        now_ms = self.loops[0].now_ms
        if now_ms >= self._accept_logged_ms:
            self._accept_logged_ms = now_ms + self.config.limits.accept_log_ms
            log.error(
                "accept failed: %s. New connections wait; raise the limit of open files (ulimit -n, LimitNOFILE) if they are wanted", error
            )

    def _open_local(self, user: str, name: str) -> socket.socket:
        """A connection to this node for a link that acts as `user`: the far end of a socket that no other process can reach. Any thread.
        Raises: OSError when there are as many connections as may be."""
        if (
            sum(map(_SOCKET_COUNT, self.loops)) >= self.descriptors.amqp
            or len(self.broker.connections) >= self.config.limits.connections_max
        ):
            raise OSError(0, "the node has as many connections as it takes")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop = next(self._turns)
        loop.call(partial(self._serve, loop, ours.detach(), name, 0, False, user))
        return theirs

    def _serve(
        self,
        loop: Loop,
        fd: int,
        host: str,
        port: int,
        secure: bool,
        trusted: str | None = None,
        layered: Callable[[ConnectionHandler, Any], Any] | None = None,
    ) -> None:
        try:
            connection = Connection((host, port), self.config.limits)
            handler = ConnectionHandler(connection, self.broker, loop, next(self.broker.connection_ids), host, port, secure)
            connection.handler = handler
            handler.trusted = trusted
            if self.broker.log is not None:
                connection.attach_log(self.broker.log)
            tls: Any = None
            if secure and self.tls is not None:
                from flintmq.net.tls import TlsLayer

                tls = TlsLayer(self.tls)
            if tls is not None:
                handler.memory.add(TLS_BYTES)
            if layered is not None:
                tls = layered(handler, tls)
        except BaseException:
            os.close(fd)  # nobody has it yet
            raise
        handler.socket = loop.add(fd, connection, tls)
        self.broker.pending.add(handler)

    def _tick(self, loop: Loop, first: bool, now_ms: int) -> None:
        self._seen_ms[id(loop)] = time.monotonic_ns() // 1_000_000
        self._look_at_connections(loop, now_ms)
        if first:
            if loop.accept_paused:
                loop.accept(True)
            self.broker.housekeeping(now_ms)

    def _look_at_connections(self, loop: Loop, now_ms: int) -> None:
        """Deadlines, heartbeats and idle buffers of all connections of a loop, in slices; one round at a time."""
        if loop in self._rounds:
            return
        self._rounds.add(loop)
        entries = iter(loop.entries())

        def step() -> bool:
            for entry in islice(entries, ROUND_STEP):
                handler = None if entry.connection is None else entry.connection.handler
                if handler is not None:  # it has not ended since the round began
                    guarded("housekeeping of connections", handler.name, handler.tick, now_ms)
                    entry.trim()
            return length_hint(entries) == 0

        loop.job(step, lambda done: self._rounds.discard(loop))

    def _alarm(self, loop: Loop, low: str) -> None:
        """The scarce resource changed on this loop: "memory", "disk", "memory & disk", or nothing any more."""
        if low:
            used = f"{amount(bytes_held())} held for clients, {amount(self.memory_limit)} are allowed"
            disk = f"; {amount(self._disk_needed)} of disk must be free" if self._disk_needed else ""
            log.warning("low on %s: publishers are blocked (%s%s)", low, used, disk)
            return
        log.warning("nothing is low any more: publishers go on")
        for entry in loop.entries():
            if entry.connection is not None:
                handler = entry.connection.handler
                guarded("publishers that go on", handler.name, handler.unblocked)

    @property
    def _disk_needed(self) -> int:
        """Bytes of free disk below which publishers are blocked; 0: nothing is on disk."""
        return 0 if self.store is None else self.store.logs.messages.reserves.roomy

    def summary(self) -> str:
        """The node in one line: version, process, addresses, store, limits. It asks the disk."""
        where = ", ".join(f"{protocol} on {endpoint(address, port)}" for protocol, address, port in self.listening())
        store, full = "nothing is kept on disk", ""
        if self.store is not None:
            store = f"store {self.store.directory}"
            free = shutil.disk_usage(self.store.directory).free
            full = f" and below {amount(self._disk_needed)} of free disk ({amount(free)} are free)"
        connections = min(self.config.limits.connections_max, self.descriptors.amqp)
        limits = f"at most {connections} connections; publishers are blocked above {amount(self.memory_limit)} held for clients{full}"
        python = platform.python_version()
        name = self.broker.node_name
        return f"FlintMQ {__version__} on Python {python}, node {name}, process {os.getpid()}: {where or 'no listener'}; {store}; {limits}"

    # --- stop -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Graceful stop: no new connections, connection.close(320) to everybody, then the loops end. Idempotent; any thread."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._leave(self.config.limits.shutdown_ms_max / 1000)
        self.links.stop()
        self.memory.stop()
        if self.http is not None:
            self.http.stop()
        self.pulls.stop()
        self.broker.expiry.stop()
        self.broker.schedules.stop()
        if self.broker.log_exchange is not None:
            self.broker.log_exchange.close()
        if self.dataplane is not None:
            self.dataplane.stop()
        if self.config.unix_socket is not None and self._unix_listener is not None:
            unix_socket.remove(self.config.unix_socket, self._unix_inode)
        for loop in self.loops:
            loop.call(partial(self._stop_loop, loop))
        for thread in self._threads:
            thread.join(self.config.limits.shutdown_ms_max / 1000)
        if self.exporter is not None:
            self.exporter.stop()
        self.users.close()
        if self.tokens is not None:
            self.tokens.oauth.close()
        self.pulls.close()
        clean = self.failure is None and not any(thread.is_alive() for thread in self._threads) and not self.broker.schedules.left_behind
        if self.broker.streams is not None:
            self.broker.streams.stop(clean)
        if self.broker.shared is not None:
            self.broker.shared.stop()
        if self.store is not None:
            self.store.close(clean)
        self.actors.stop()
        self.broker.expiry.close()
        self.broker.schedules.close()
        figures = self.actors.gauges()
        log.debug(
            "actors: %d requests in %d slices; %d busy, %d expired, %d failed, %d wakes lost",
            figures["processed_total"],
            figures["slices_total"],
            figures["outcome_busy_total"] + figures["dropped_busy_total"],
            figures["outcome_expired_total"],
            figures["outcome_failed_total"],
            figures["wakes_lost_total"],
        )

    def _store_failed(self, error: StoreError) -> None:
        """The disk failed (any thread): nothing is confirmed any more; whoever runs the node stops it."""
        self.failure = error
        self.failed.set()

    def _stop_loop(self, loop: Loop) -> None:
        for entry in loop.entries():
            guarded("connections at shutdown", entry, self._stop_entry, loop, entry)
        deadline = loop.now_ms + self.config.limits.close_ms_max

        def finished(now_ms: int) -> None:
            entries = loop.entries()
            if (entries or loop.working) and now_ms < deadline:
                return
            for entry in entries:  # peers that did not answer in time
                if entry.connection is not None:
                    handler = entry.connection.handler
                    guarded("connections at shutdown", handler.name, handler.closed, "shutdown")
                loop.remove(entry)
            loop.stopping = True

        loop.on_timer = finished
        loop.set_timer(20)

    def _stop_entry(self, loop: Loop, entry: Any) -> None:
        """A listener closes, a client is told, a client that asked for its close may end its stream, whoever has not logged in is cut."""
        if entry.connection is None:
            loop.remove(entry)
            return
        handler = entry.connection.handler
        if handler.state == handshake.RUNNING:
            handler.close(ReplyCode.CONNECTION_FORCED, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")
            loop.touch(entry)
        elif handler.state not in (handshake.CLOSING, handshake.CLOSED):
            handler.closed("shutdown")
            loop.remove(entry)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until `stop` was called. Returns False on timeout."""
        return self._stopped.wait(timeout_s)
