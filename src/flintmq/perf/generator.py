"""Compiled workers of the load generator (see generator.pxd for the message layout).

in: connected sockets whose channel 1 is set up. out: counters, latency histograms and the verdict on every message: lost, twice,
out of order, on the wrong queue, damaged.

I1  A Worker and its connections are used by one thread while `run` runs; other threads only read counters and set the stop flags.
I2  All consumers of a queue belong to one Worker: what a queue delivered is counted without locks.
I3  A batch is patched only when every byte of it was sent.
"""

from __future__ import annotations

import cython
from cython import (
    NULL, Py_ssize_t, address, bint, cast, cclass, char, declare, double, nogil, p_char, p_uchar, pointer, size_t, sizeof, void,
)  # fmt: skip
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.perf.checker import check_consumer, check_distinct, check_end, check_message, check_start, tail_of
from cython.cimports.flintmq.perf.histogram import histogram_copy, record
from cython.cimports.flintmq.perf.native import (
    EAGAIN, EINTR, EPOLLIN, EPOLLOUT, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, MSG_NOSIGNAL, close_fd, epoll_create1, epoll_ctl,
    epoll_event, epoll_wait, errno, get32, get64, now_ns, put64, put_digits, read_fd, recv, send, timer_at, timer_exact, timer_new,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcpy, memmove

# bytes; holds the largest frame that tune allows twice
INPUT_SIZE = declare(size_t, 384 * 1024)
# connections that share a thread with hundreds of others get less: their messages are small and few
INPUT_SIZE_MANY = declare(size_t, 160 * 1024)
# milliseconds an idle worker sleeps at most: stop flags are seen this late
TICK_MS = declare(c_int, 10)
# basic.ack: frame header, method id; the tag and the flag follow
_ACK_HEAD = declare(bytes, b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50")
_ack_head = declare(pointer[cython.const[uint8_t]], _ACK_HEAD)


@cclass
class Worker:
    """The connections of one thread."""

    def __cinit__(self, queues: int, producers: int, keys: int, fans_out: bool):
        """queues, producers: of the whole run; keys: routing keys, key k leads to queue k % queues unless `fans_out`."""
        self.key_count = keys
        if not check_start(address(self.check), queues, producers, keys, fans_out):
            raise MemoryError
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.timer = timer_new()
        event: epoll_event
        event.events = EPOLLIN
        event.data.ptr = NULL
        epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.timer, address(event))

    def __dealloc__(self):
        index: c_int
        peer: pointer[peer_t]
        for index in range(self.peer_count):
            peer = self.peers[index]
            free(peer.input)
            free(peer.batch)
            free(peer.sequences)
            free(peer.ring)
            free(peer.acks)
            free(peer.highest)
            free(peer)
        check_end(address(self.check))
        close_fd(self.epoll)
        close_fd(self.timer)

    def add(self, fd: int, pending: bytes, publisher: dict[str, object] | None, consumer: dict[str, object] | None) -> int:
        """Takes a connected non-blocking socket over; returns its number. The caller keeps the socket open until `run` ended.

        pending: bytes already read. publisher: message (bytes), body_at, tail_at, key_at, unique_at, producer, key, rotates,
        batch (messages), quota, interval_ns, start_ns, window. consumer: queue, ack_every.
        """
        peer: pointer[peer_t] = cast(pointer[peer_t], calloc(1, sizeof(peer_t)))
        message: bytes
        index: uint64_t
        size: size_t
        if peer == NULL or not self.adopt(peer):
            raise MemoryError
        peer.fd = fd
        peer.input = cast(p_uchar, malloc(self._input_size()))
        if peer.input == NULL:
            raise MemoryError
        peer.input_end = len(pending)
        memcpy(peer.input, cast(p_uchar, pending), len(pending))
        if publisher is not None:
            message = publisher["message"]
            size = len(message)
            peer.publishes = True
            peer.message_size = size
            peer.batch_messages = publisher["batch"]
            peer.batch = cast(p_uchar, malloc(size * peer.batch_messages))
            peer.sequences = cast(pointer[uint32_t], calloc(self.key_count, 4))
            if peer.batch == NULL or peer.sequences == NULL:
                raise MemoryError
            for index in range(peer.batch_messages):
                memcpy(peer.batch + index * size, cast(p_uchar, message), size)
            peer.body_at = publisher["body_at"]
            peer.tail_at = publisher["tail_at"]
            peer.key_at = publisher["key_at"]
            peer.unique_at = publisher["unique_at"]
            peer.producer = publisher["producer"]
            peer.key = publisher["key"]
            peer.rotates = publisher["rotates"]
            peer.quota = publisher["quota"]
            peer.interval_ns = publisher["interval_ns"]
            peer.start_ns = publisher["start_ns"]
            peer.window = publisher["window"]
            if peer.window:
                peer.ring_mask = 1
                while peer.ring_mask < peer.window + 1:
                    peer.ring_mask *= 2
                peer.ring_mask -= 1
                peer.ring = cast(pointer[int64_t], calloc(peer.ring_mask + 1, 8))
                if peer.ring == NULL:
                    raise MemoryError
        if consumer is not None:
            peer.consumes = True
            peer.queue = consumer["queue"]
            peer.ack_every = consumer["ack_every"]
            peer.highest = check_consumer(address(self.check), peer.queue)
            peer.acks_room = 64 * 1024
            peer.acks = cast(p_uchar, malloc(peer.acks_room))
            if peer.highest == NULL or peer.acks == NULL:
                raise MemoryError
        event: epoll_event
        event.events = EPOLLIN
        event.data.ptr = peer
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, address(event)) != 0:
            raise OSError(errno, "epoll_ctl")
        return self.peer_count - 1

    def _input_size(self) -> int:
        return INPUT_SIZE if self.peer_count <= 64 else INPUT_SIZE_MANY

    def adopt(self, peer: pointer[peer_t]) -> bint:
        """Puts the peer into the table; False without memory."""
        room: c_int
        peers: pointer[pointer[peer_t]]
        if self.peer_count == self.peer_room:
            room = self.peer_room * 2 if self.peer_room else 16
            peers = cast(pointer[pointer[peer_t]], realloc(self.peers, room * sizeof(pointer[peer_t])))
            if peers == NULL:
                return False
            self.peers = peers
            self.peer_room = room
        self.peers[self.peer_count] = peer
        self.peer_count += 1
        return True

    def run(self, end_ns: int) -> None:
        """Works until `stop`, a failure, or, without consumers, until all is published and confirmed.

        end_ns: publishers stop at this monotonic time; 0: never. Releases the GIL.
        """
        self.end_ns = end_ns
        with nogil:
            timer_exact()
            self.loop()

    def stop(self) -> None:
        """Any thread: `run` returns soon."""
        self.stop_all = True

    def end_publishing(self) -> None:
        """Any thread: publishers stop after the batch they send."""
        self.stop_publishing = True

    # --- results ------------------------------------------------------------------------------------------------------
    @property
    def error(self) -> str | None:
        """Why the worker gave up (the broker closed, a damaged frame), or None."""
        return cast(bytes, self.failure).decode(errors="replace") if self.failed else None

    def counts(self) -> dict[str, int]:
        """Sums over the connections; times are monotonic ns, 0 when it did not happen."""
        index: c_int
        peer: pointer[peer_t]
        published: uint64_t = 0
        confirmed: uint64_t = 0
        nacked: uint64_t = 0
        returned: uint64_t = 0
        received: uint64_t = 0
        open_publishers: uint64_t = 0
        held: int64_t = 0
        first: int64_t = 0
        last: int64_t = 0
        first_in: int64_t = 0
        last_in: int64_t = 0
        for index in range(self.peer_count):
            peer = self.peers[index]
            published += peer.published
            confirmed += peer.confirmed
            nacked += peer.nacked
            returned += peer.returned
            received += peer.received
            held += peer.held_ns
            open_publishers += peer.publishes and not peer.done
            if peer.first_ns and (first == 0 or peer.first_ns < first):
                first = peer.first_ns
            last = max(last, peer.last_ns)
            if peer.first_in_ns and (first_in == 0 or peer.first_in_ns < first_in):
                first_in = peer.first_in_ns
            last_in = max(last_in, peer.last_in_ns)
        return {
            "published": published,
            "confirmed": confirmed,
            "nacked": nacked,
            "returned": returned,
            "received": received,
            "distinct": check_distinct(address(self.check)),
            "publishing": open_publishers,
            "held_ns": held,
            "first_ns": first,
            "last_ns": last,
            "first_in_ns": first_in,
            "last_in_ns": last_in,
        }

    def verdict(self) -> dict[str, int]:
        """What the check found, and how many different messages came out of all queues. Call after `run`."""
        return {
            "distinct": check_distinct(address(self.check)),
            "duplicates": self.check.duplicates,
            "disordered": self.check.disordered,
            "corrupt": self.check.corrupt,
            "misrouted": self.check.misrouted,
            "redelivered": self.check.redelivered,
            "late_max_ns": self.late_max_ns,
        }

    def histograms(self) -> tuple[dict[str, object], dict[str, object]]:
        """(delivery latency, confirm latency)."""
        return histogram_copy(address(self.latency)), histogram_copy(address(self.confirms))

    def rest(self, number: int) -> bytes:
        """Bytes of connection `number` that were read and not parsed. Call after `run`."""
        peer: pointer[peer_t] = self.peers[number]
        return PyBytes_FromStringAndSize(cast(p_char, peer.input) + peer.input_start, cast(Py_ssize_t, peer.input_end - peer.input_start))

    # --- the loop -----------------------------------------------------------------------------------------------------
    def fail(self, text: pointer[cython.const[char]], detail: pointer[cython.const[uint8_t]], size: size_t) -> void:
        """The first failure is kept: `text`, then `size` bytes of detail."""
        at: size_t = 0
        if self.failed:
            return
        while text[at] and at < 100:
            self.failure[at] = text[at]
            at += 1
        if size > 190:
            size = 190
        memcpy(address(self.failure[at]), detail, size)
        self.failure[at + size] = 0
        self.failed = True

    def loop(self) -> void:
        events: epoll_event[64]
        count: c_int
        index: c_int
        wait: c_int
        peer: pointer[peer_t]
        now: int64_t
        due: int64_t
        peer_due: int64_t
        expirations: uint64_t
        busy: bint
        consumers: bint = False
        open_publishers: c_int
        for index in range(self.peer_count):
            consumers = consumers or self.peers[index].consumes
            self.parse(self.peers[index], now_ns())
        while not self.stop_all and not self.failed:
            now = now_ns()
            busy = False
            due = 0
            open_publishers = 0
            for index in range(self.peer_count):
                peer = self.peers[index]
                if peer.publishes and not (peer.done and peer.confirmed + peer.nacked >= (peer.published if peer.window else 0)):
                    open_publishers += 1
                if peer.armed or (peer.done and peer.acks_start == peer.acks_end):
                    continue
                self.pump(peer, now)
                if peer.armed or peer.done or not peer.publishes:
                    continue
                if peer.interval_ns > 0:
                    peer_due = peer.start_ns + cast(int64_t, peer.interval_ns * peer.published)
                    if due == 0 or peer_due < due:
                        due = peer_due
                elif not peer.held and not (peer.window and peer.published - peer.confirm_low >= peer.window):
                    busy = True
            if open_publishers == 0 and not consumers:
                return
            wait = TICK_MS
            if busy:
                wait = 0
            elif due:
                if due <= now_ns():
                    wait = 0
                else:
                    timer_at(self.timer, due)
            count = epoll_wait(self.epoll, events, EVENTS_MAX, wait)
            if count == 0 and wait and consumers:
                # Idle: acknowledge what is left of each group; the last group of a run is seldom full.
                for index in range(self.peer_count):
                    self.acknowledge(self.peers[index])
            for index in range(count):
                peer = cast(pointer[peer_t], events[index].data.ptr)
                if peer == NULL:
                    read_fd(self.timer, address(expirations), 8)
                    continue
                if peer.armed and events[index].events & EPOLLOUT:
                    peer.armed = False
                    self._watch(peer)
                if events[index].events & ~cast(uint32_t, EPOLLOUT):
                    self.take_input(peer)

    def _watch(self, peer: pointer[peer_t]) -> void:
        event: epoll_event
        event.events = EPOLLIN | EPOLLOUT if peer.armed else EPOLLIN
        event.data.ptr = peer
        epoll_ctl(self.epoll, EPOLL_CTL_MOD, peer.fd, address(event))

    # --- publishing ---------------------------------------------------------------------------------------------------
    def pump(self, peer: pointer[peer_t], now: int64_t) -> void:
        """Sends what is due of one connection: the rest of a batch, acknowledgements, then one more batch."""
        count: uint64_t
        if not self.flush(peer, now) or not peer.publishes or peer.done:
            return
        count = self.allowance(peer, now)
        if count:
            self.fill(peer, count, now)
            self.flush(peer, now)
        elif peer.published >= peer.quota or self.stop_publishing or (self.end_ns and now >= self.end_ns):
            peer.done = True

    def allowance(self, peer: pointer[peer_t], now: int64_t) -> uint64_t:
        """Messages that may be published now: bounded by the batch, the quota, the confirm window, the rate and the end."""
        count: uint64_t = peer.batch_messages
        due: double
        if self.stop_publishing or peer.held or (self.end_ns and now >= self.end_ns):
            return 0
        if peer.quota - peer.published < count:
            count = peer.quota - peer.published
        if peer.window:
            # confirm_low, not the number confirmed: the ring holds every tag from there on
            if peer.window - (peer.published - peer.confirm_low) < count:
                count = peer.window - (peer.published - peer.confirm_low)
        if peer.interval_ns > 0:
            if now < peer.start_ns:
                return 0
            due = cast(double, now - peer.start_ns) / peer.interval_ns + 1 - cast(double, peer.published)
            if due < 1:
                return 0
            if due < count:
                count = cast(uint64_t, due)
        return count

    def fill(self, peer: pointer[peer_t], count: uint64_t, now: int64_t) -> void:
        """Patches `count` messages of the batch. With a rate, a message's time is when it was due: waiting counts as latency."""
        index: uint64_t
        identity: uint64_t
        sent: int64_t = now
        at: p_uchar = peer.batch
        for index in range(count):
            if peer.interval_ns > 0:
                sent = peer.start_ns + cast(int64_t, peer.interval_ns * peer.published)
                if now - sent > self.late_max_ns:
                    self.late_max_ns = now - sent
            identity = (peer.producer << 48) | (cast(uint64_t, peer.key) << 32) | peer.sequences[peer.key]
            peer.sequences[peer.key] += 1
            if peer.key_at:
                put_digits(at + peer.key_at, 5, peer.key)
            if peer.unique_at:
                put_digits(at + peer.unique_at, 10, peer.published)
            put64(at + peer.body_at, identity)
            put64(at + peer.body_at + 8, sent)
            if peer.tail_at:
                put64(at + peer.tail_at, tail_of(identity))
            if peer.rotates:
                peer.key += 1
                if peer.key == self.key_count:
                    peer.key = 0
            peer.published += 1
            if peer.window:
                peer.ring[peer.published & peer.ring_mask] = now
            at += peer.message_size
        peer.batch_start = 0
        peer.batch_end = count * peer.message_size
        if peer.first_ns == 0:
            peer.first_ns = now

    def flush(self, peer: pointer[peer_t], now: int64_t) -> bint:
        """Sends the rest of the batch, then acknowledgements. True when nothing is left."""
        sent: Py_ssize_t
        while peer.batch_start < peer.batch_end:
            sent = send(peer.fd, peer.batch + peer.batch_start, peer.batch_end - peer.batch_start, MSG_NOSIGNAL)
            if sent < 0:
                return self._unsent(peer)
            peer.batch_start += sent
            if peer.batch_start == peer.batch_end:
                peer.last_ns = now_ns()
        while peer.acks_start < peer.acks_end:
            sent = send(peer.fd, peer.acks + peer.acks_start, peer.acks_end - peer.acks_start, MSG_NOSIGNAL)
            if sent < 0:
                return self._unsent(peer)
            peer.acks_start += sent
        peer.acks_start = 0
        peer.acks_end = 0
        return True

    def _unsent(self, peer: pointer[peer_t]) -> bint:
        if errno == EAGAIN:
            peer.armed = True
            self._watch(peer)
        elif errno != EINTR:
            # The broker's reason may be waiting in the input.
            self.take_input(peer)
            self.fail("the connection broke while sending", NULL, 0)
        return False

    # --- input --------------------------------------------------------------------------------------------------------
    def take_input(self, peer: pointer[peer_t]) -> void:
        """One read (the socket is watched level-triggered), then everything that is complete."""
        room: size_t
        got: Py_ssize_t
        # Connections added early have more; the least is assumed for all.
        limit: size_t = INPUT_SIZE if self.peer_count <= 64 else INPUT_SIZE_MANY
        if peer.input_start:
            memmove(peer.input, peer.input + peer.input_start, peer.input_end - peer.input_start)
            peer.input_end -= peer.input_start
            peer.input_start = 0
        room = limit - peer.input_end
        got = recv(peer.fd, peer.input + peer.input_end, room, 0)
        if got < 0:
            if errno != EAGAIN and errno != EINTR:
                self.fail("the connection broke", NULL, 0)
            return
        if got == 0:
            self.fail("the broker hung up", NULL, 0)
            return
        peer.input_end += got
        self.parse(peer, now_ns())

    def parse(self, peer: pointer[peer_t], now: int64_t) -> void:
        """Every complete frame of the input."""
        p: p_uchar
        size: uint32_t
        kind: uint8_t
        take: uint32_t
        while peer.input_end - peer.input_start >= 8 and not self.failed:
            p = peer.input + peer.input_start
            size = get32(p + 3)
            if size > INPUT_SIZE_MANY - 8:
                self.fail("a frame is larger than agreed", NULL, 0)
                return
            if peer.input_end - peer.input_start < cast(size_t, size) + 8:
                break
            if p[7 + size] != 0xCE:
                self.fail("a frame has no end octet", NULL, 0)
                return
            kind = p[0]
            peer.input_start += cast(size_t, size) + 8
            p += 7
            if kind == 3:
                if size > peer.body_left:
                    self.fail("a body is longer than its header says", NULL, 0)
                    return
                if peer.body_left == peer.body_size:
                    peer.body_id = get64(p) if size >= 16 else 0
                    peer.body_time = get64(p + 8) if size >= 16 else 0
                if size >= 8:
                    peer.body_tail = get64(p + size - 8)
                else:
                    for take in range(size):
                        peer.body_tail = (peer.body_tail << 8) | p[take]
                peer.body_left -= size
                if peer.body_left == 0:
                    self.message_in(peer, now)
            elif kind == 1:
                if size < 4:
                    self.fail("a method frame is too short", NULL, 0)
                    return
                self.method(peer, p, size, now)
            elif kind == 2:
                peer.body_size = get64(p + 4) if size >= 14 else 0
                peer.body_left = peer.body_size
                if peer.body_size == 0:
                    peer.body_id = 0
                    peer.body_tail = 0
                    self.message_in(peer, now)
            elif kind != 8:
                self.fail("a frame of an unknown kind", NULL, 0)
                return
        if peer.input_start == peer.input_end:
            peer.input_start = 0
            peer.input_end = 0

    def method(self, peer: pointer[peer_t], payload: pointer[uint8_t], size: uint32_t, now: int64_t) -> void:
        method: uint32_t = get32(payload)
        at: uint32_t
        if method == (60 << 16 | 60):  # basic.deliver
            at = 5 + payload[4]
            if at + 9 > size:
                self.fail("basic.deliver is too short", NULL, 0)
                return
            peer.tag = get64(payload + at)
            peer.redelivered = payload[at + 8] & 1
            peer.returning = False
        elif method == (60 << 16 | 80) or method == (60 << 16 | 120):  # basic.ack, basic.nack: confirms
            if size < 13:
                self.fail("a confirm is too short", NULL, 0)
                return
            self.confirm(peer, get64(payload + 4), payload[12] & 1, method == (60 << 16 | 120), now)
        elif method == (60 << 16 | 50):  # basic.return
            peer.returning = True
        elif method == (10 << 16 | 60):  # connection.blocked
            if not peer.held:
                peer.held = True
                peer.held_since = now
        elif method == (10 << 16 | 61):  # connection.unblocked
            if peer.held:
                peer.held = False
                peer.held_ns += now - peer.held_since
        elif method == (10 << 16 | 50) or method == (20 << 16 | 40):  # connection.close, channel.close
            if size >= 7 and size >= 7 + cast(uint32_t, payload[6]):
                self.fail("closed by the broker: ", payload + 7, payload[6])
            else:
                self.fail("closed by the broker", NULL, 0)
        elif method == (60 << 16 | 30):  # basic.cancel
            self.fail("the broker cancelled a consumer", NULL, 0)

    def confirm(self, peer: pointer[peer_t], tag: uint64_t, multiple: bint, nack: bint, now: int64_t) -> void:
        """Counts confirms; each message's time from send to confirm is recorded."""
        at: uint64_t = peer.confirm_low + 1 if multiple else tag
        slot: pointer[int64_t]
        if tag > peer.published or tag == 0 or not peer.window:
            self.fail("a confirm for a message that was not published", NULL, 0)
            return
        while at <= tag:
            if at > peer.confirm_low:
                slot = address(peer.ring[at & peer.ring_mask])
                if slot[0]:
                    if nack:
                        peer.nacked += 1
                    else:
                        peer.confirmed += 1
                        record(address(self.confirms), now - slot[0])
                    slot[0] = 0
            at += 1
        while peer.confirm_low < peer.published and peer.ring[(peer.confirm_low + 1) & peer.ring_mask] == 0:
            peer.confirm_low += 1

    def message_in(self, peer: pointer[peer_t], now: int64_t) -> void:
        """Records one delivery's latency, has it checked, and acknowledges it when its group is full."""
        if peer.returning:
            peer.returning = False
            peer.returned += 1
            return
        peer.received += 1
        if peer.first_in_ns == 0:
            peer.first_in_ns = now
        peer.last_in_ns = now
        if peer.ack_every and peer.tag - peer.acked >= peer.ack_every:
            self.acknowledge(peer)
        if peer.body_size >= 16:
            record(address(self.latency), now - cast(int64_t, peer.body_time))
        if not check_message(address(self.check), peer.queue, peer.highest, peer.body_size, peer.body_id, peer.body_tail, peer.redelivered):
            self.fail("out of memory", NULL, 0)

    def acknowledge(self, peer: pointer[peer_t]) -> void:
        """basic.ack up to the last delivery, multiple unless each is acknowledged by itself."""
        acks: p_uchar
        if peer.ack_every == 0 or peer.tag == peer.acked or peer.body_left:
            return
        if peer.acks_end + ACK_SIZE > peer.acks_room:
            acks = cast(p_uchar, realloc(peer.acks, peer.acks_room * 2))
            if acks == NULL:
                self.fail("out of memory", NULL, 0)
                return
            peer.acks = acks
            peer.acks_room *= 2
        acks = peer.acks + peer.acks_end
        memcpy(acks, _ack_head, 11)
        put64(acks + 11, peer.tag)
        acks[19] = 1 if peer.ack_every > 1 else 0
        acks[20] = 0xCE
        peer.acks_end += ACK_SIZE
        peer.acked = peer.tag
