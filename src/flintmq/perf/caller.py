"""Repeats a conversation of pre-encoded methods on blocking sockets, without the GIL (see caller.pxd).

in: steps of (bytes, awaited method); the marker `NUMBER` in the bytes becomes the cycle's number, in ten digits. out: the time of each
cycle, the number of failures and the text of the first.

I1  A Caller is used by one thread while `run` runs; other threads only call `stop` and read counters.
"""

from __future__ import annotations

import cython
from cython import NULL, Py_ssize_t, address, bint, cast, cclass, char, declare, nogil, p_char, p_uchar, pointer, size_t
from cython import int as c_int
from cython.cimports.flintmq.perf.histogram import histogram_copy, record
from cython.cimports.flintmq.perf.native import (
    EINTR, MSG_NOSIGNAL, close_fd, errno, get32, now_ns, put_digits, recv, send, sleep_ns, tcp_connect,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memcmp, memcpy, memmove

NUMBER = b"@@@@@@@@@@"
# seconds one answer may take
ANSWER_S_MAX = declare(c_int, 30)
# a step is repeated at most this often (basic.get before the publish has arrived)
REPEATS_MAX = declare(c_int, 10_000)


@cclass
class Caller:
    """One thread's conversation. `persistent`: the connection `fd` stays open, else each cycle connects to host:port anew."""

    def __cinit__(self, host: str, port: int, steps: list[tuple[bytes, int, int, bool]], fd: int = -1):
        offset: Py_ssize_t
        step: pointer[step_t]
        if len(steps) > STEPS_MAX:
            raise ValueError("too many steps")
        self.host = host.encode()
        self.port = port
        self.fd = fd
        self.persistent = fd >= 0
        self.kept = []
        self.input = cast(p_uchar, malloc(INPUT_ROOM))
        if self.input == NULL:
            raise MemoryError
        for data, answer, repeat_after, content in steps:
            # A copy of its own: the digits are patched in place.
            own: bytearray = bytearray(data)
            self.kept.append(own)
            step = address(self.steps[self.step_count])
            step.data = cast(p_uchar, cast(p_char, own))
            step.size = len(own)
            step.answer = answer
            step.again = repeat_after
            step.content = content
            step.place_count = 0
            offset = data.find(NUMBER)
            while offset >= 0:
                if step.place_count == PLACES_MAX:
                    raise ValueError("too many numbers in one step")
                step.places[step.place_count] = offset
                step.place_count += 1
                offset = data.find(NUMBER, offset + NUMBER_DIGITS)
            self.step_count += 1

    def __dealloc__(self):
        free(self.input)
        if self.fd >= 0 and not self.persistent:
            close_fd(self.fd)

    def run(self, first: int, stride: int, count: int, end_ns: int) -> None:
        """Cycles numbered first, first + stride, ...; `count` of them (0: no bound) or until monotonic `end_ns` (0: no bound)."""
        number: uint64_t = first
        step: uint64_t = stride
        bound: uint64_t = count
        end: int64_t = end_ns
        began: int64_t
        host: p_char = self.host
        with nogil:
            self.first_ns = now_ns()
            self.last_ns = self.first_ns
            while not self.stop_all and not (bound and self.done + self.failures >= bound):
                began = now_ns()
                if end and began >= end:
                    break
                if self.cycle(host, number):
                    self.done += 1
                    self.last_ns = now_ns()
                    record(address(self.cycles), self.last_ns - began)
                else:
                    self.failures += 1
                    if self.persistent:
                        break
                    close_fd(self.fd)
                    self.fd = -1
                    sleep_ns(1_000_000)
                number += step

    def stop(self) -> None:
        """Any thread: `run` returns after the cycle it is in."""
        self.stop_all = True

    def counts(self) -> dict[str, int]:
        return {"done": self.done, "failures": self.failures, "first_ns": self.first_ns, "last_ns": self.last_ns}

    @property
    def error(self) -> str | None:
        """The first failure."""
        return cast(bytes, self.failure).decode(errors="replace") if self.failure[0] else None

    def histogram(self) -> dict[str, object]:
        return histogram_copy(address(self.cycles))

    def note(self, text: pointer[cython.const[char]], detail: pointer[cython.const[uint8_t]], size: size_t) -> bint:
        """Keeps the first failure; always False."""
        offset: size_t = 0
        if self.failure[0]:
            return False
        while text[offset] and offset < 60:
            self.failure[offset] = text[offset]
            offset += 1
        if size > 190:
            size = 190
        memcpy(address(self.failure[offset]), detail, size)
        self.failure[offset + size] = 0
        return False

    def frame(self, size: pointer[uint32_t]) -> pointer[uint8_t]:
        """The next whole frame, valid until the next call; NULL when the connection ended or nothing came in time."""
        got: Py_ssize_t
        start: p_uchar
        have: size_t
        while True:
            have = self.input_end - self.input_start
            start = self.input + self.input_start
            if have >= 8:
                size[0] = get32(start + 3)
                if size[0] > INPUT_ROOM - 8:
                    self.note("a frame is larger than this workload expects", NULL, 0)
                    return NULL
                if have >= cast(size_t, size[0]) + 8:
                    if start[7 + size[0]] != 0xCE:
                        self.note("a frame has no end octet", NULL, 0)
                        return NULL
                    self.input_start += cast(size_t, size[0]) + 8
                    return start
            memmove(self.input, start, have)
            self.input_start = 0
            self.input_end = have
            got = recv(self.fd, self.input + have, INPUT_ROOM - have, 0)
            if got < 0 and errno == EINTR:
                continue
            if got <= 0:
                self.note("the broker hung up or did not answer", NULL, 0)
                return NULL
            self.input_end += got

    def step(self, step: pointer[step_t], digits: pointer[uint8_t]) -> bint:
        """Sends, then reads until the answer. False: failed (noted)."""
        size: uint32_t = 0
        index: uint32_t
        method: uint32_t
        repeats: c_int = 0
        sent: size_t = 0
        got: Py_ssize_t
        p: p_uchar
        for index in range(step.place_count):
            memcpy(step.data + step.places[index], digits, NUMBER_DIGITS)
        while True:
            sent = 0
            while sent < step.size:
                got = send(self.fd, step.data + sent, step.size - sent, MSG_NOSIGNAL)
                if got < 0:
                    if errno == EINTR:
                        continue
                    return self.note("the connection broke", NULL, 0)
                sent += got
            if step.answer == 0:
                return True
            while True:
                p = self.frame(address(size))
                if p == NULL:
                    return False
                if p[0] != 1 or size < 4:
                    continue
                method = get32(p + 7)
                if method == step.answer or (step.again and method == step.again):
                    break
                if (method == (10 << 16 | 50) or method == (20 << 16 | 40)) and size >= 7:
                    return self.note("closed by the broker: ", p + 14, p[13])
            if method == step.answer:
                break
            repeats += 1
            if repeats == REPEATS_MAX:
                return self.note("the message never arrived", NULL, 0)
        if step.content:
            while True:
                p = self.frame(address(size))
                if p == NULL:
                    return False
                if p[0] == 3:
                    break
            if size != NUMBER_DIGITS or memcmp(p + 7, digits, NUMBER_DIGITS) != 0:
                return self.note("another body than the one published", NULL, 0)
        return True

    def cycle(self, host: pointer[cython.const[char]], number: uint64_t) -> bint:
        """One conversation. True when every step got its answer."""
        digits: uint8_t[10]
        index: c_int
        put_digits(digits, NUMBER_DIGITS, number)
        if not self.persistent:
            self.input_start = 0
            self.input_end = 0
            self.fd = tcp_connect(host, self.port, ANSWER_S_MAX)
            if self.fd < 0:
                return self.note("can't connect", NULL, 0)
        for index in range(cast(c_int, self.step_count)):
            if not self.step(address(self.steps[index]), digits):
                return False
        if not self.persistent:
            close_fd(self.fd)
            self.fd = -1
        return True
