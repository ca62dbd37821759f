"""Compiled workers of the load generator (see generator.pxd for the message layout).

in: connected sockets whose channel 1 is set up. out: counters, latency histograms and the verdict on every message: lost, twice,
out of order, on the wrong queue, damaged.

I1  A Worker and its connections are used by one thread while `run` runs; other threads only read counters and set the stop flags.
I2  All consumers of a queue belong to one Worker: what a queue delivered is counted without locks.
I3  A batch is patched only when every byte of it was sent.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.perf.checker import check_consumer, check_distinct, check_end, check_message, check_start, tail_of
from cython.cimports.flintmq.perf.histogram import histogram_copy, record
from cython.cimports.flintmq.perf.native import EAGAIN, EINTR, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT
from cython.cimports.flintmq.perf.native import MSG_NOSIGNAL, close_fd, epoll_create1, epoll_ctl, epoll_event, epoll_wait, errno
from cython.cimports.flintmq.perf.native import get32, get64, now_ns, put64, put_digits, read_fd, recv, send
from cython.cimports.flintmq.perf.native import timer_at, timer_exact, timer_new
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcpy, memmove

# bytes; holds the largest frame that tune allows twice
INPUT_SIZE = cython.declare(cython.size_t, 384 * 1024)
# connections that share a thread with hundreds of others get less: their messages are small and few
INPUT_SIZE_MANY = cython.declare(cython.size_t, 160 * 1024)
# milliseconds an idle worker sleeps at most: stop flags are seen this late
TICK_MS = cython.declare(cython.int, 10)
# basic.ack: frame header, method id; the tag and the flag follow
_ACK_HEAD = cython.declare(bytes, b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50")
_ack_head = cython.declare(cython.pointer(cython.const[uint8_t]), _ACK_HEAD)


@cython.cclass
class Worker:
    """The connections of one thread."""

    def __cinit__(self, queues: int, producers: int, keys: int, fans_out: bool):
        """queues, producers: of the whole run; keys: routing keys, key k leads to queue k % queues unless `fans_out`."""
        self.key_count = keys
        if not check_start(cython.address(self.check), queues, producers, keys, fans_out):
            raise MemoryError
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.timer = timer_new()
        event: epoll_event
        event.events = EPOLLIN
        event.data.ptr = cython.NULL
        epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.timer, cython.address(event))

    def __dealloc__(self):
        index: cython.int
        peer: cython.pointer(peer_t)
        for index in range(self.peer_count):
            peer = self.peers[index]
            free(peer.input)
            free(peer.batch)
            free(peer.sequences)
            free(peer.ring)
            free(peer.acks)
            free(peer.highest)
            free(peer)
        check_end(cython.address(self.check))
        close_fd(self.epoll)
        close_fd(self.timer)

    def add(self, fd: int, pending: bytes, publisher: dict[str, object] | None, consumer: dict[str, object] | None) -> int:
        """Takes a connected non-blocking socket over; returns its number. The caller keeps the socket open until `run` ended.

        pending: bytes already read. publisher: message (bytes), body_at, tail_at, key_at, unique_at, producer, key, rotates,
        batch (messages), quota, interval_ns, start_ns, window. consumer: queue, ack_every.
        """
        peer: cython.pointer(peer_t) = cython.cast(cython.pointer(peer_t), calloc(1, cython.sizeof(peer_t)))
        message: bytes
        index: uint64_t
        size: cython.size_t
        if peer == cython.NULL or not self.adopt(peer):
            raise MemoryError
        peer.fd = fd
        peer.input = cython.cast(cython.p_uchar, malloc(self._input_size()))
        if peer.input == cython.NULL:
            raise MemoryError
        peer.input_end = len(pending)
        memcpy(peer.input, cython.cast(cython.p_uchar, pending), len(pending))
        if publisher is not None:
            message = publisher["message"]
            size = len(message)
            peer.publishes = True
            peer.message_size = size
            peer.batch_messages = publisher["batch"]
            peer.batch = cython.cast(cython.p_uchar, malloc(size * peer.batch_messages))
            peer.sequences = cython.cast(cython.pointer(uint32_t), calloc(self.key_count, 4))
            if peer.batch == cython.NULL or peer.sequences == cython.NULL:
                raise MemoryError
            for index in range(peer.batch_messages):
                memcpy(peer.batch + index * size, cython.cast(cython.p_uchar, message), size)
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
                peer.ring = cython.cast(cython.pointer(int64_t), calloc(peer.ring_mask + 1, 8))
                if peer.ring == cython.NULL:
                    raise MemoryError
        if consumer is not None:
            peer.consumes = True
            peer.queue = consumer["queue"]
            peer.ack_every = consumer["ack_every"]
            peer.highest = check_consumer(cython.address(self.check), peer.queue)
            peer.acks_room = 64 * 1024
            peer.acks = cython.cast(cython.p_uchar, malloc(peer.acks_room))
            if peer.highest == cython.NULL or peer.acks == cython.NULL:
                raise MemoryError
        event: epoll_event
        event.events = EPOLLIN
        event.data.ptr = peer
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, cython.address(event)) != 0:
            raise OSError(errno, "epoll_ctl")
        return self.peer_count - 1

    def _input_size(self) -> int:
        return INPUT_SIZE if self.peer_count <= 64 else INPUT_SIZE_MANY

    def adopt(self, peer):
        """Puts the peer into the table; False without memory."""
        room: cython.int
        peers: cython.pointer(cython.pointer(peer_t))
        if self.peer_count == self.peer_room:
            room = self.peer_room * 2 if self.peer_room else 16
            peers = cython.cast(cython.pointer(cython.pointer(peer_t)), realloc(self.peers, room * cython.sizeof(cython.pointer(peer_t))))
            if peers == cython.NULL:
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
        with cython.nogil:
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
        return cython.cast(bytes, self.failure).decode(errors="replace") if self.failed else None

    def counts(self) -> dict[str, int]:
        """Sums over the connections; times are monotonic ns, 0 when it did not happen."""
        index: cython.int
        peer: cython.pointer(peer_t)
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
            "distinct": check_distinct(cython.address(self.check)),
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
            "distinct": check_distinct(cython.address(self.check)),
            "duplicates": self.check.duplicates,
            "disordered": self.check.disordered,
            "corrupt": self.check.corrupt,
            "misrouted": self.check.misrouted,
            "redelivered": self.check.redelivered,
            "late_max_ns": self.late_max_ns,
        }

    def histograms(self) -> tuple[dict[str, object], dict[str, object]]:
        """(delivery latency, confirm latency)."""
        return histogram_copy(cython.address(self.latency)), histogram_copy(cython.address(self.confirms))

    def rest(self, number: int) -> bytes:
        """Bytes of connection `number` that were read and not parsed. Call after `run`."""
        peer: cython.pointer(peer_t) = self.peers[number]
        return PyBytes_FromStringAndSize(
            cython.cast(cython.p_char, peer.input) + peer.input_start, cython.cast(cython.Py_ssize_t, peer.input_end - peer.input_start)
        )

    # --- the loop -----------------------------------------------------------------------------------------------------
    def fail(self, text, detail, size):
        """The first failure is kept: `text`, then `size` bytes of detail."""
        at: cython.size_t = 0
        if self.failed:
            return
        while text[at] and at < 100:
            self.failure[at] = text[at]
            at += 1
        if size > 190:
            size = 190
        memcpy(cython.address(self.failure[at]), detail, size)
        self.failure[at + size] = 0
        self.failed = True

    def loop(self):
        events: epoll_event[64]
        count: cython.int
        index: cython.int
        wait: cython.int
        peer: cython.pointer(peer_t)
        now: int64_t
        due: int64_t
        peer_due: int64_t
        expirations: uint64_t
        busy: cython.bint
        consumers: cython.bint = False
        open_publishers: cython.int
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
                    peer_due = peer.start_ns + cython.cast(int64_t, peer.interval_ns * peer.published)
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
                peer = cython.cast(cython.pointer(peer_t), events[index].data.ptr)
                if peer == cython.NULL:
                    read_fd(self.timer, cython.address(expirations), 8)
                    continue
                if peer.armed and events[index].events & EPOLLOUT:
                    peer.armed = False
                    self._watch(peer)
                if events[index].events & ~cython.cast(uint32_t, EPOLLOUT):
                    self.take_input(peer)

    def _watch(self, peer):
        event: epoll_event
        event.events = EPOLLIN | EPOLLOUT if peer.armed else EPOLLIN
        event.data.ptr = peer
        epoll_ctl(self.epoll, EPOLL_CTL_MOD, peer.fd, cython.address(event))

    # --- publishing ---------------------------------------------------------------------------------------------------
    def pump(self, peer, now):
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

    def allowance(self, peer, now):
        """Messages that may be published now: bounded by the batch, the quota, the confirm window, the rate and the end."""
        count: uint64_t = peer.batch_messages
        due: cython.double
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
            due = cython.cast(cython.double, now - peer.start_ns) / peer.interval_ns + 1 - cython.cast(cython.double, peer.published)
            if due < 1:
                return 0
            if due < count:
                count = cython.cast(uint64_t, due)
        return count

    def fill(self, peer, count, now):
        """Patches `count` messages of the batch. With a rate, a message's time is when it was due: waiting counts as latency."""
        index: uint64_t
        identity: uint64_t
        sent: int64_t = now
        at: cython.p_uchar = peer.batch
        for index in range(count):
            if peer.interval_ns > 0:
                sent = peer.start_ns + cython.cast(int64_t, peer.interval_ns * peer.published)
                if now - sent > self.late_max_ns:
                    self.late_max_ns = now - sent
            identity = (peer.producer << 48) | (cython.cast(uint64_t, peer.key) << 32) | peer.sequences[peer.key]
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

    def flush(self, peer, now):
        """Sends the rest of the batch, then acknowledgements. True when nothing is left."""
        sent: cython.Py_ssize_t
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

    def _unsent(self, peer):
        if errno == EAGAIN:
            peer.armed = True
            self._watch(peer)
        elif errno != EINTR:
            # The broker's reason may be waiting in the input.
            self.take_input(peer)
            self.fail("the connection broke while sending", cython.NULL, 0)
        return False

    # --- input --------------------------------------------------------------------------------------------------------
    def take_input(self, peer):
        """One read (the socket is watched level-triggered), then everything that is complete."""
        room: cython.size_t
        got: cython.Py_ssize_t
        # Connections added early have more; the least is assumed for all.
        limit: cython.size_t = INPUT_SIZE if self.peer_count <= 64 else INPUT_SIZE_MANY
        if peer.input_start:
            memmove(peer.input, peer.input + peer.input_start, peer.input_end - peer.input_start)
            peer.input_end -= peer.input_start
            peer.input_start = 0
        room = limit - peer.input_end
        got = recv(peer.fd, peer.input + peer.input_end, room, 0)
        if got < 0:
            if errno != EAGAIN and errno != EINTR:
                self.fail("the connection broke", cython.NULL, 0)
            return
        if got == 0:
            self.fail("the broker hung up", cython.NULL, 0)
            return
        peer.input_end += got
        self.parse(peer, now_ns())

    def parse(self, peer, now):
        """Every complete frame of the input."""
        p: cython.p_uchar
        size: uint32_t
        kind: uint8_t
        take: uint32_t
        while peer.input_end - peer.input_start >= 8 and not self.failed:
            p = peer.input + peer.input_start
            size = get32(p + 3)
            if size > INPUT_SIZE_MANY - 8:
                self.fail("a frame is larger than agreed", cython.NULL, 0)
                return
            if peer.input_end - peer.input_start < cython.cast(cython.size_t, size) + 8:
                break
            if p[7 + size] != 0xCE:
                self.fail("a frame has no end octet", cython.NULL, 0)
                return
            kind = p[0]
            peer.input_start += cython.cast(cython.size_t, size) + 8
            p += 7
            if kind == 3:
                if size > peer.body_left:
                    self.fail("a body is longer than its header says", cython.NULL, 0)
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
                    self.fail("a method frame is too short", cython.NULL, 0)
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
                self.fail("a frame of an unknown kind", cython.NULL, 0)
                return
        if peer.input_start == peer.input_end:
            peer.input_start = 0
            peer.input_end = 0

    def method(self, peer, payload, size, now):
        method: uint32_t = get32(payload)
        at: uint32_t
        if method == (60 << 16 | 60):  # basic.deliver
            at = 5 + payload[4]
            if at + 9 > size:
                self.fail("basic.deliver is too short", cython.NULL, 0)
                return
            peer.tag = get64(payload + at)
            peer.redelivered = payload[at + 8] & 1
            peer.returning = False
        elif method == (60 << 16 | 80) or method == (60 << 16 | 120):  # basic.ack, basic.nack: confirms
            if size < 13:
                self.fail("a confirm is too short", cython.NULL, 0)
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
            if size >= 7 and size >= 7 + cython.cast(uint32_t, payload[6]):
                self.fail("closed by the broker: ", payload + 7, payload[6])
            else:
                self.fail("closed by the broker", cython.NULL, 0)
        elif method == (60 << 16 | 30):  # basic.cancel
            self.fail("the broker cancelled a consumer", cython.NULL, 0)

    def confirm(self, peer, tag, multiple, nack, now):
        """Counts confirms; each message's time from send to confirm is recorded."""
        at: uint64_t = peer.confirm_low + 1 if multiple else tag
        slot: cython.pointer(int64_t)
        if tag > peer.published or tag == 0 or not peer.window:
            self.fail("a confirm for a message that was not published", cython.NULL, 0)
            return
        while at <= tag:
            if at > peer.confirm_low:
                slot = cython.address(peer.ring[at & peer.ring_mask])
                if slot[0]:
                    if nack:
                        peer.nacked += 1
                    else:
                        peer.confirmed += 1
                        record(cython.address(self.confirms), now - slot[0])
                    slot[0] = 0
            at += 1
        while peer.confirm_low < peer.published and peer.ring[(peer.confirm_low + 1) & peer.ring_mask] == 0:
            peer.confirm_low += 1

    def message_in(self, peer, now):
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
            record(cython.address(self.latency), now - cython.cast(int64_t, peer.body_time))
        if not check_message(
            cython.address(self.check), peer.queue, peer.highest, peer.body_size, peer.body_id, peer.body_tail, peer.redelivered
        ):
            self.fail("out of memory", cython.NULL, 0)

    def acknowledge(self, peer):
        """basic.ack up to the last delivery, multiple unless each is acknowledged by itself."""
        acks: cython.p_uchar
        if peer.ack_every == 0 or peer.tag == peer.acked or peer.body_left:
            return
        if peer.acks_end + ACK_SIZE > peer.acks_room:
            acks = cython.cast(cython.p_uchar, realloc(peer.acks, peer.acks_room * 2))
            if acks == cython.NULL:
                self.fail("out of memory", cython.NULL, 0)
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
