"""Everything about one connection that is not hot: its state, its methods, its end.

in: what the loop could not do without Python (channel.types SLOW_*). out: replies in the output buffer, changes in the virtual
host, errors as channel.close or connection.close.

The handshake is a table (handshake.STEPS): (state, method) -> step; a pair that is not there is refused with 503. Once open, methods
are looked up by id in `methods.VERBS`, which also says which of their names are cleaned first.

I1  A PeerError closes the channel or the connection with its code, and nothing of the refused request happened.
I2  After the end (closed, failed, or a finished close) and its slices (session.long_work) the connection holds no entry, no consumer and no
    exclusive queue; none of them was given anything meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.access.checks import source_of
from flintmq.broker.loops import STEP_NS
from flintmq.broker.records import ChannelState, Consumer
from flintmq.channel.slow import (
    SETTLING_MULTIPLE,
    SETTLING_REQUEUE,
    SLOW_DEAD_LETTER,
    SLOW_HEADER,
    SLOW_POLICY,
    SLOW_PUBLISH,
    SLOW_ROUTE,
    SLOW_VERSION,
)
from flintmq.channel.weights import CHANNEL_BYTES, CONNECTION_BYTES
from flintmq.core.memory_account import MemoryShare
from flintmq.endpoint import endpoint
from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.guard import guarded
from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import clip_shortstr, decode_properties
from flintmq.session import commits, handshake, long_work, publishing, underway
from flintmq.session.long_work import Works
from flintmq.session.methods import VERBS, open_node_channel
from flintmq.vhost.names import clean_name

if TYPE_CHECKING:
    from flintmq.broker.broker import Broker
    from flintmq.channel.connection import Connection
    from flintmq.channel.loop_port import LoopPort, SocketPort
    from flintmq.channel.transaction import Transaction
    from flintmq.routing.route_cache import RouteCache

log = handshake.log


PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
CHANNEL_OPEN_ID = spec.METHOD_IDS["channel.open"]
BASIC_PUBLISH_ID = spec.METHOD_IDS["basic.publish"]
CLOSE_OK = spec.ConnectionCloseOk()
UNKNOWN_FRAME_TYPE = "unknown frame type"
LF, CR = b"\n\r"

# SLOW_* of single messages -> key of Counters.in_python
IN_PYTHON = {SLOW_ROUTE: "route", SLOW_PUBLISH: "publish", SLOW_DEAD_LETTER: "settle", SLOW_POLICY: "limit"}


class ConnectionHandler:
    """Serves one connection.

    Args: connection: the compiled half; broker: shared services; loop: the loop that owns it; connection_id: unique in the node;
    secure: came over TLS; peer_host, peer_port: where from.
    """

    # More than thirty attributes: in a dict of its own each would be slower to read, and to make (CPython shares the keys of thirty).
    __slots__ = (
        "__weakref__",
        "after_answer",
        "broker",
        "channel_max",
        "channels",
        "client_properties",
        "close_deadline_ms",
        "connected_at_ms",
        "connection",
        "connection_id",
        "deferred",
        "door",
        "ended",
        "frame_size_max",
        "heartbeat_s",
        "is_blocked",
        "is_py_amqp",
        "login",
        "loop",
        "mechanism",
        "memory",
        "name",
        "peer_host",
        "peer_port",
        "route_caches",
        "secure",
        "socket",
        "started_ms",
        "state",
        "trusted",
        "user",
        "user_born",
        "verbs",
        "vhost",
        "wants_blocked",
        "wants_cancel",
        "wants_hints",
        "wants_login_close",
        "works",
    )

    def __init__(
        self, connection: Connection, broker: Broker, loop: LoopPort, connection_id: int, peer_host: str, peer_port: int, secure: bool
    ) -> None:
        self.connection = connection
        self.broker = broker
        self.loop = loop
        self.connection_id = connection_id
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.secure = secure
        self.name = f"{endpoint(peer_host, peer_port)} -> {broker.listen_name}"
        self.socket: SocketPort | None = None
        self.state = handshake.START
        self.user = ""
        self.user_born = 0  # access.users.Users.born of whoever logged in
        # the user for whom the broker itself made this connection: it logs in with the mechanism EXTERNAL, without a password
        self.trusted: str | None = None
        # of a connection that another node of the cluster logged in to: where it came in (broker.door)
        self.door: Any = None
        self.mechanism = ""
        # the password check that is waited for, which is taken out of its line when the connection ends; or the conversation of
        # SCRAM, or of another node
        self.login: Any = None
        self.vhost: Any = None
        # what the client says it understands, and who it is
        self.wants_blocked = False
        self.wants_cancel = False
        self.wants_login_close = False
        self.wants_hints = True
        self.is_py_amqp = False
        self.client_properties = b""  # octets of a field table (broker.client_properties)
        self.heartbeat_s = 0
        self.frame_size_max = broker.limits.frame_size_max
        self.channel_max = broker.limits.channels_max
        self.channels: dict[int, ChannelState] = {}
        self.route_caches: dict[str, RouteCache] | None = (
            None  # of exchanges whose keys the user is asked for; they end with the last keeper
        )
        self.started_ms = loop.now_ms
        self.connected_at_ms = broker.clock.wall_ms()
        self.close_deadline_ms: int | None = None
        self.is_blocked = False
        self.ended = False
        # what it has in the account of memory beside its buffers and channels: itself, its TLS, its consumers
        self.memory = MemoryShare("connections")
        self.memory.add(CONNECTION_BYTES)
        # a method that waits for a commit-ok before it (session.commits)
        self.deferred: Callable[[], None] | None = None
        # verbs that wait for the database
        self.verbs = underway.NONE
        # what must not go out before the answer to the method that is being served; None: nothing has to wait
        self.after_answer: list[tuple[int, spec.Method]] | None = None
        self.works = Works()

    def keep_cache(self, exchange_name: str, cache: RouteCache) -> None:
        """Keeps the routes of the user by an exchange as long as the connection lives, those of Limits.user_routes_max exchanges."""
        caches = self.route_caches = self.route_caches or {}
        if exchange_name not in caches and len(caches) >= self.broker.limits.user_routes_max:
            caches.clear()
        caches[exchange_name] = cache

    # --- called by the loop -----------------------------------------------------------------------------------------

    def slow(self, kind: int, channel: int, payload: Any, method_id: int, tag: int, size: int) -> None:
        """One event of the compiled half that is no method (channel/slow.pxd, SLOW_*). `payload`: bytes with SLOW_ROUTE; may be None."""
        one = IN_PYTHON.get(kind)
        if one is not None:
            self.broker.counters.in_python[one] += 1
        try:
            if kind == SLOW_ROUTE:
                publishing.find_route(self, channel, payload)
            elif kind == SLOW_PUBLISH:
                publishing.publish(self, channel)
            elif kind == SLOW_DEAD_LETTER:
                long_work.settle(self, channel, method_id, tag, bool(size & SETTLING_MULTIPLE), bool(size & SETTLING_REQUEUE))
            elif kind == SLOW_POLICY:
                publishing.after_publish(self)
            elif kind == SLOW_HEADER:
                handshake.begin(self)
            elif kind == SLOW_VERSION:
                self.connection.write(PROTOCOL_HEADER)
                self._end("bad protocol header")
                self.connection.finished(False)
            else:
                self._engine_error(payload)
        except PeerError as error:
            # Only these two kinds of event bring the number of their method; in others stands that of an earlier one.
            if kind in (SLOW_ROUTE, SLOW_PUBLISH):
                method_id = BASIC_PUBLISH_ID
            elif kind != SLOW_DEAD_LETTER:
                method_id = 0
            self.refuse(channel, error, method_id)

    def method(self, channel: int, payload: bytes, method_id: int) -> None:
        """Serves one method frame, or keeps it when an answer must come before its own. `payload`: class id, method id, arguments."""
        if channel and self.connection.committing and commits.must_wait(self, channel, method_id):
            commits.wait(self, channel, payload, method_id)
            return
        try:
            method = self.connection.decode(payload)
            if channel and self.state == handshake.RUNNING:
                known = VERBS.get(method_id)
                if known is None:
                    raise PeerError(ReplyCode.COMMAND_INVALID, f"{method.NAME} is not for servers")
                verb, names = known
                # Behind the number of the method, which may be 10. Numbers: bytes would be tried as numbers first.
                if payload.find(LF, 4) >= 0 or payload.find(CR, 4) >= 0:
                    for name in names:
                        setattr(method, name, clean_name(getattr(method, name)))
                if self.verbs and not underway.may_join(self, method):
                    commits.wait(self, channel, payload, method_id)
                    return
                if method_id == CHANNEL_OPEN_ID and self.door is not None:
                    open_node_channel(self, channel, payload[4:])
                    return
                verb(self, channel, method)
            else:
                if self.state == handshake.START:
                    self.client_properties = payload[4:]
                step: handshake.Step = handshake.STEPS.get((self.state, method_id), handshake.not_due)
                step(self, method)
        except (PeerError, StoreError) as error:
            underway.refuse(self, channel, method_id, error)

    # --- verbs of the virtual host ----------------------------------------------------------------------------------

    # runs a verb and answers: now, or when the database has what it changes
    change = underway.change

    def is_there(self) -> bool:
        """Whether somebody waits for answers of this connection."""
        return not self.ended

    def not_saved(self, channel: int, method_id: int, error: StoreError) -> None:
        """A full disk, or a database that is lost, with which the node ends."""
        log.error("connection %s: %s", self.name, error)
        text = f"{spec.METHODS[method_id].NAME}: the definitions can't be saved"
        self.refuse(channel, PeerError(ReplyCode.INTERNAL_ERROR, text), method_id)

    def _engine_error(self, header: bytes | None) -> None:
        code, text, channel, method_id, value = self.connection.engine_error()
        if text == UNKNOWN_FRAME_TYPE:
            # Specification 4.2.3: close the connection without sending any further data on it.
            self.complain(log.error, "closing connection %s: %s", self.name, text)
            self.finish()
            return
        if header is not None:
            try:
                decode_properties(header, self.broker.limits.table_depth_max, self.broker.limits.table_fields_max)
            except PeerError as error:
                text = f"{text}: {error.text}"
        if text == "unknown delivery tag":
            text = f"unknown delivery tag {value}"
        elif text.startswith("message size"):
            text = f"message size {value} is larger than configured max size {self.broker.limits.message_size_max}"
        self.refuse(channel, PeerError(ReplyCode(code), text, hard=channel == 0), method_id)

    def blocked(self, resource: str) -> None:
        """The loop paused this publisher. `resource`: is low: memory (above the watermark), disk (the log has only its reserve)."""
        self.is_blocked = True
        if self.wants_blocked:
            self.send(0, spec.ConnectionBlocked(f"low on {resource}"))
        self.complain(log.warning, "connection %s: publisher is blocked: low on %s", self.name, resource)

    def unblocked(self) -> None:
        """Nothing is low any more: the publisher is read on."""
        if not self.is_blocked:
            return
        self.is_blocked = False
        if self.wants_blocked and not self.broker.flow.holds(self):
            self.send(0, spec.ConnectionUnblocked())
        if self.socket is not None:
            self.loop.resume(self.socket)
            self.loop.touch(self.socket)

    def closed(self, reason: str) -> None:
        """The socket is gone (or about to go)."""
        if self.state == handshake.RUNNING:
            self.complain(log.warning, "connection %s user %r: %s", self.name, self.user, reason)
        elif self.state != handshake.CLOSED:
            log.debug("connection %s: %s", self.name, reason)
        self._end(reason)

    def failed(self) -> None:
        """A bug of ours hit this connection: it is told so (541), everything it holds goes back."""
        self.close(ReplyCode.INTERNAL_ERROR, "INTERNAL_ERROR")
        self.finish()
        if self.socket is not None:
            self.loop.touch(self.socket)

    def tick(self, now_ms: int) -> None:
        """Housekeeping: deadlines and heartbeats. `now_ms`: monotonic."""
        socket = self.socket
        if socket is None:
            return
        self.broker.counters.add_drops(self.connection.take_drops())
        self.broker.counters.add_letters(self.connection.take_letters())
        # A late loop never blames its peers: everybody's time begins anew when it reads again.
        awake_ms = self.loop.awake_ms
        if self.close_deadline_ms is not None:
            if now_ms >= max(self.close_deadline_ms, awake_ms + self.broker.limits.close_ms_max):
                self._cut("the peer did not answer a close in time")
            return
        if self.state == handshake.CLOSED:
            self.close_deadline_ms = now_ms + self.broker.limits.close_ms_max
            return
        if self.state not in (handshake.RUNNING, handshake.CLOSING):
            waited_ms = now_ms - max(self.started_ms, awake_ms)
            if socket.tls is not None and not socket.tls.established and waited_ms >= self.broker.limits.tls_handshake_ms_max:
                self._cut(f"{socket.tls.NAME} handshake timed out")
            elif waited_ms >= self.broker.limits.handshake_ms_max:
                self._cut("handshake timed out")
            return
        if socket.asks_held and now_ms - max(socket.sent_ms, awake_ms) > self.broker.limits.output_stuck_ms:
            self._cut(f"it asks and does not read: nothing of {self.connection.output_size} bytes left in output_stuck_ms")
            return
        if self.heartbeat_s:
            # Two intervals without a byte: the peer is dead (specification 4.2.7). A paused publisher can't show life.
            if not socket.paused and now_ms - max(socket.received_ms, awake_ms) > self.heartbeat_s * 2000:
                self._cut(f"missed heartbeats from client, timeout: {self.heartbeat_s}s")
            elif now_ms - socket.sent_ms >= self.heartbeat_s * 500 and self.connection.output_size == 0:
                self.connection.write(HEARTBEAT_FRAME)
                self.loop.touch(socket)

    @property
    def is_open(self) -> bool:
        """It has opened a virtual host, and its close has not begun."""
        return self.state == handshake.RUNNING and not self.ended

    def go_on(self) -> None:
        """What a method waited for has come: it is served, if it may be now, and then what the client sent after it."""
        commits.go_on(self)

    def after_publish(self) -> None:
        """Dead letters and dropped heads that a publish or a commit left to do."""
        publishing.after_publish(self)

    def commit(self, number: int) -> None:
        """tx.commit: answered now, or when the log has it."""
        commits.commit(self, number)

    def committed(self, transaction: Transaction, alive: bool) -> None:
        """A transaction has taken effect; `alive`: its channel is still there."""
        commits.committed(self, transaction, alive)

    def head_came(self) -> None:
        """What a method waits for may have come: the loop asks again after its present pass. Any thread."""
        self.loop.call(self.go_on)

    def route_again(self, exchange: bytes, keys: list[bytes], header: bytes) -> list[Any]:
        """A queue of a message's route is deleted: the queues it goes to by the routing table of now."""
        return publishing.route_again(self, exchange, keys, header)

    def spanned(self, queue_id: int, redelivered: bool, header: bytes) -> None:
        """A delivery whose trace is sampled. Args: header: content header payload."""
        if self.broker.spans is not None:
            self.broker.spans.delivered(self, self.broker.queues.get(queue_id), redelivered, header)

    def expire(self, queue_id: int) -> bool:
        """A consumer or basic.get is about to read a queue in which messages are past their time: a slice of them ends. True: all did."""
        queue = self.broker.queues.get(queue_id)
        if queue is None:
            return True
        until_ns = self.broker.clock.monotonic_ns() + STEP_NS
        ends = partial(self.broker.expiry.expire, queue, time.time_ns() // 1_000_000, until_ns)
        done: list[bool] = []
        # An expiry that fails must not keep the consumer from the messages that are not expired.
        guarded("expiry", f"queue {queue.name!r}", lambda: done.append(ends()))
        return not done or done[0]

    def keep_limit(self, queue_id: int) -> None:
        """A consumer had its turn: what it left above the queue's limit is dead-lettered or dropped, in slices."""
        queue = self.broker.queues.get(queue_id)
        if queue is not None:
            self.broker.queue_limits.enforce(queue)

    # --- output -----------------------------------------------------------------------------------------------------

    def send(self, channel: int, method: spec.Method) -> None:
        """Appends a method frame to the output. It leaves at the end of the loop's pass when called by the loop."""
        self.connection.send(channel, method)

    def send_later(self, channel: int, method: spec.Method) -> None:
        """The same from outside this connection's own event: the loop is told that there is output."""
        if self.ended or self.socket is None:
            return
        if self.after_answer is not None:
            self.after_answer.append((channel, method))
            return
        self.send(channel, method)
        self.loop.touch(self.socket)

    def complain(self, log_line: Callable[..., None], text: str, *values: object) -> None:
        """A line of the log that the client causes: each user has so many in a second, and before a login each address."""
        cause = str(self.user) if self.state == handshake.RUNNING else source_of(self.peer_host)
        self.broker.lines.say(log_line, cause, text, *values)

    # --- errors and ends --------------------------------------------------------------------------------------------

    def refuse(self, channel: int, error: PeerError, method_id: int = 0) -> None:
        """Answers a broken rule: channel.close for soft errors on an open channel, else connection.close (I1)."""
        class_id, method = method_id >> 16, method_id & 0xFFFF
        text = clip_shortstr(error.reply_text if self.wants_hints else error.plain_text)
        # What one client of another node does wrong is told that client, and ends no channel of the others.
        hard = error.hard and self.door is None
        if hard or channel == 0 or self.state != handshake.RUNNING or channel not in self.channels:
            self.close(error.code, text, class_id, method)
            return
        self.complain(log.error, "channel error on connection %s, channel %d: %s", self.name, channel, text)
        # What the client does after its close-ok finds everything given back: it is not read before that.
        self.send(channel, spec.ChannelClose(int(error.code), text, class_id, method))
        self.drop_channel(channel, lambda: None, wait_for_ok=True)

    def close(self, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        """Ends the connection from our side: connection.close, wait for close-ok, at most close_ms_max."""
        if self.state in (handshake.CLOSING, handshake.CLOSED):
            return
        self.complain(log.info if code == ReplyCode.CONNECTION_FORCED else log.error, "closing connection %s: %s", self.name, text)
        # A peer whose login is refused answers with close-ok, as any other: rabbitpy takes an end of the stream before it for a reset.
        early = self.state not in (handshake.RUNNING, handshake.AUTHENTICATING)
        self.state = handshake.CLOSING
        self.send(0, spec.ConnectionClose(int(code), clip_shortstr(text), class_id, method_id))
        self.connection.closing()
        self._end(text)
        self._read_on()
        self.close_deadline_ms = self.loop.now_ms + self.broker.limits.close_ms_max
        if early:
            # A peer that failed the handshake gets the reason, and no further say.
            self.finish()

    def finish(self, *, awaits_end: bool = False) -> None:
        """The close is agreed: the loop ends the connection when the output is sent (see Connection.finished)."""
        self.state = handshake.CLOSED
        self._end("closed")
        self.connection.finished(awaits_end)
        self._read_on()

    def _read_on(self) -> None:
        """The connection ends: whatever held back reading (an alarm, a full log) holds it no more, so that a close-ok is always read."""
        self.is_blocked = False
        if self.socket is not None:
            self.loop.release(self.socket)

    def evict(self) -> None:
        """Its place is needed: a peer that has not finished its handshake is cut off. On its loop."""
        if self.state not in (handshake.RUNNING, handshake.CLOSED):
            self._cut("others wait to connect, and its handshake is the oldest")

    def _cut(self, reason: str) -> None:
        """Hangs up without a word."""
        self.closed(reason)
        if self.socket is not None:
            self.loop.remove(self.socket)
            self.socket = None

    def drop_channel(self, number: int, done: Callable[[], object], *, wait_for_ok: bool) -> None:
        """Ends an open channel: unacked deliveries return to their places, then queues learn that consumers are gone; then `done`.

        Args: wait_for_ok: channel.close is being sent; what still arrives is ignored until its answer.
        """
        state = self.channels.pop(number)
        self.connection.leave_channel(number, wait_for_ok)
        long_work.end(self, [state], None, done)

    def agree(self) -> None:
        """connection.close of the client: everything it holds goes back, then it is answered, and nothing more is read."""
        self.connection.closing()
        if self.state == handshake.RUNNING:
            log.info("connection %s: closed by its client", self.name)
        self._end("closed")
        if not self.works:
            self.send(0, CLOSE_OK)
            self.finish(awaits_end=True)
            return
        self.works.add(self, lambda: True, self._agreed)
        self.connection.waiting = True

    def _agreed(self) -> None:
        if self.connection.handler is None:
            return  # it hung up meanwhile
        self.connection.waiting = False
        self.send(0, CLOSE_OK)
        self.finish(awaits_end=True)
        if self.socket is not None:
            self.loop.resume(self.socket)
            self.loop.touch(self.socket)

    def logged_in(self, user: str, born: int) -> None:
        """The connection is this user's from now on."""
        self.user, self.user_born = user, born
        self.connection.set_user(user.encode("utf-8", "surrogateescape"))

    def consumer_came(self, consumer: Consumer) -> None:
        """It is counted from now on. Raises: PeerError 530 when its user has as many as may be."""
        self.broker.quotas.add_consumer(self.user)
        self.memory.add(consumer.weight)

    def consumer_left(self, consumer: Consumer) -> None:
        """It was cancelled, or could not begin."""
        self.broker.quotas.remove_consumer(self.user)
        self.memory.add(-consumer.weight)

    def channels_left(self, count: int) -> None:
        """Channels ended, and their consumers have left."""
        self.broker.quotas.close_channels(self.user, count)
        self.broker.counters.channels_closed += count
        self.memory.add(-CHANNEL_BYTES * count)

    def _end(self, reason: str) -> None:
        """Gives back everything the connection holds, once (I2): at once what is little, else in slices."""
        if self.ended:
            return
        self.ended = True
        self.deferred = None
        self.route_caches = None
        if self.verbs:
            underway.forget(self)
        if self.login is not None:
            self.login.cancel()
            self.login = None
        if self.connection.waiting:
            # Whatever was to be answered is not any more; a close-ok must still be read.
            self.connection.waiting = False
            if self.socket is not None:
                self.loop.resume(self.socket)
        states = list(self.channels.values())
        self.channels.clear()
        self.connection.leave()
        long_work.end(self, states, partial(self._gone, self.socket, reason), long_work.nothing)

    def _gone(self, socket: SocketPort | None, reason: str) -> None:
        """All its channels and its exclusive queues are gone."""
        self.broker.counters.add_drops(self.connection.take_drops())
        self.broker.counters.add_letters(self.connection.take_letters())
        if socket is not None:
            self.loop.unschedule(socket)
        self.broker.connection_ended(self, reason)
