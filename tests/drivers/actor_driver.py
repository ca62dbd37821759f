"""Real threads and bare loops on the actor system (see actor_driver.pxd).

Stress: producers of four kinds of requests, wakers and disturbers on few actors; what must hold afterwards is in `faults`.
Load: many actors and parked requests, and timed loops, for bench/actors.py.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, declare, double, exceptval, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, at_add64, at_load32, at_load64, at_load_ptr, at_store32, at_swap32
from cython.cimports.flintmq.core.clock import monotonic_ns
from cython.cimports.flintmq.core.futex import futex_wait, futex_wake
from cython.cimports.flintmq.scheduler.actor import (
    DISPATCH_CLOSED, DISPATCH_OK, OUTCOME_BUSY, OUTCOME_CLOSED, OUTCOME_MESSAGES, PROCESS_AGAIN, PROCESS_DONE, PROCESS_FAILED, PROCESS_PARK,
    actor_close, actor_dispatch, actor_find, actor_get, actor_put, actor_resume, actor_retire, actor_suspend, actor_t, actor_wake,
    actor_wake_next, request_answer, request_cancel, request_t, system_dispatch, system_now,
)  # fmt: skip
from cython.cimports.flintmq.scheduler.system import ActorSystem
from cython.cimports.flintmq.scheduler.worker import system_step
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset
from cython.cimports.posix.unistd import usleep

# kinds of requests
PLAIN = declare(uint8_t, 0)  # done at once
PULL = declare(uint8_t, 1)  # takes an item, or parks
LONG = declare(uint8_t, 2)  # needs three turns
BROKEN = declare(uint8_t, 3)  # fails
HELD = declare(uint8_t, 4)  # a pull that gives up after its hold


# --- stress: requests -------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _work(actor: pointer[actor_t], request: pointer[request_t]) -> c_int:
    probe: pointer[probe_t] = cast(pointer[probe_t], request)
    stress: pointer[stress_t] = probe.stress
    key: pointer[key_t] = address(stress.keys[probe.key])
    what: c_int = PROCESS_DONE
    if at_swap32(address(key.busy), 1):
        at_add64(address(stress.overlaps), 1)
    if probe.kind == PULL or probe.kind == HELD:
        if cast(int64_t, at_load64(cast(pointer[uint64_t], address(key.items)))) > 0:
            at_add64(cast(pointer[uint64_t], address(key.items)), cast(uint64_t, -1))
        else:
            what = PROCESS_PARK
    elif probe.kind == LONG:
        if probe.turns:
            probe.turns -= 1
            what = PROCESS_AGAIN
    elif probe.kind == BROKEN:
        what = PROCESS_FAILED
    else:
        if key.last[probe.producer] >= probe.number:
            at_add64(address(stress.disorders), 1)
        key.last[probe.producer] = probe.number
    at_store32(address(key.busy), 0)
    if what == PROCESS_DONE:
        request_answer(request, OUTCOME_MESSAGES)
    return what


@cfunc
@nogil
@exceptval(check=False)
def _count(stress: pointer[stress_t], outcome: uint8_t) -> void:
    at_add64(address(stress.outcomes[outcome]), 1)
    if at_add64(address(stress.answered), 1) + 1 == stress.expected:
        at_store32(address(stress.done), 1)
        futex_wake(address(stress.done), 100)


@cfunc
@nogil
@exceptval(check=False)
def _answered(request: pointer[request_t]) -> void:
    probe: pointer[probe_t] = cast(pointer[probe_t], request)
    if at_add32(address(probe.answered), 1):
        at_add64(address(probe.stress.doubles), 1)
    _count(probe.stress, request.outcome)


@cfunc
@nogil
@exceptval(check=False)
def _random(seed: pointer[uint64_t]) -> uint64_t:
    seed[0] ^= seed[0] << 13
    seed[0] ^= seed[0] >> 7
    seed[0] ^= seed[0] << 17
    return seed[0] >> 11


@cclass
class Stress:
    """Args: actors: a started system. keys: actors. producers: threads that call `produce`, with per_producer requests each."""

    def __cinit__(self, actors: ActorSystem, keys: int, producers: int, per_producer: int, hold_ms: int = 5):
        i: uint32_t
        memset(address(self.stress), 0, sizeof(stress_t))
        self.actors = actors
        self.hold_ns = hold_ms * 1_000_000
        self.stress.system = actors.system
        self.stress.key_count = keys
        self.stress.producers = producers
        self.stress.per_producer = per_producer
        self.stress.expected = producers * per_producer
        self.stress.keys = cast(pointer[key_t], calloc(keys, sizeof(key_t)))
        self.stress.probes = cast(pointer[probe_t], calloc(self.stress.expected, sizeof(probe_t)))
        if self.stress.keys == NULL or self.stress.probes == NULL:
            raise MemoryError
        for i in range(self.stress.key_count):
            self.stress.keys[i].last = cast(pointer[uint64_t], calloc(producers, 8))

    def __dealloc__(self):
        i: uint32_t
        for i in range(self.stress.key_count):
            free(self.stress.keys[i].last)
        free(self.stress.keys)
        free(self.stress.probes)

    def produce(self, producer: int, mix: bytes, seed: int = 1, window: int = 0) -> None:
        """Dispatches this producer's requests; their kinds are taken from `mix` in turn. For each pull an item is added and its actor
        woken, some time before or after it. `window` > 0: about so many requests are unanswered at most, so actors fall idle again and
        again."""
        stress: pointer[stress_t] = address(self.stress)
        number: uint64_t
        first: uint64_t = producer * stress.per_producer
        who: uint32_t = producer
        rng: uint64_t = seed * 2654435761 + producer + 1
        ahead: uint64_t = window
        kinds: pointer[cython.const[uint8_t]] = mix
        kind_count: uint64_t = len(mix)
        probe: pointer[probe_t]
        early: bint
        pull: bint
        what: c_int
        key: uint32_t
        with nogil:
            for number in range(stress.per_producer):
                while (
                    ahead
                    and number * stress.producers > at_load64(address(stress.answered)) + ahead
                    and not at_load32(address(stress.stop))
                ):
                    usleep(0)
                probe = address(stress.probes[first + number])
                key = cast(uint32_t, _random(address(rng)) % stress.key_count)
                probe.stress = stress
                probe.key = key
                probe.producer = who
                probe.number = number + 1
                probe.kind = kinds[number % kind_count]
                probe.turns = 2
                probe.request.process = _work
                probe.request.answer = _answered
                if probe.kind == HELD:
                    probe.request.hold_ns = system_now(stress.system) + self.hold_ns
                pull = probe.kind == PULL or probe.kind == HELD
                early = _random(address(rng)) & 1
                if pull and early:
                    self.add_item(key)
                what = system_dispatch(stress.system, 0, key, 0, 0, address(probe.request))
                if what != DISPATCH_OK:
                    at_add32(address(probe.answered), 1)
                    _count(stress, OUTCOME_BUSY if what != DISPATCH_CLOSED else OUTCOME_CLOSED)
                if pull and not early:
                    self.add_item(key)

    def add_item(self, key: uint32_t) -> void:
        actor: pointer[actor_t]
        at_add64(cast(pointer[uint64_t], address(self.stress.keys[key].items)), 1)
        actor = actor_find(self.stress.system, 0, key, 0)
        if actor != NULL:  # else nobody waits there
            if key & 1:
                actor_wake_next(actor)
            else:
                actor_wake(actor)
            actor_put(actor)

    def disturb(self, *, closes: bool = False, cancels: bool = False, seed: int = 7) -> None:
        """Until the end: suspends and resumes, retires, now and then closes actors and cancels requests."""
        stress: pointer[stress_t] = address(self.stress)
        rng: uint64_t = seed * 40503 + 11
        token: uint64_t
        what: uint64_t
        close: bint = closes
        cancel: bint = cancels
        actor: pointer[actor_t]
        probe: pointer[probe_t]
        with nogil:
            while not at_load32(address(stress.done)) and not at_load32(address(stress.stop)):
                what = _random(address(rng))
                actor = actor_find(stress.system, 0, what % stress.key_count, 0)
                if actor == NULL:
                    continue
                what = _random(address(rng)) % 16
                if what < 6:
                    token = actor_suspend(actor)
                    if what & 1:
                        actor_resume(actor, token ^ 8)  # of another suspension: does nothing
                    if token:
                        actor_resume(actor, token)
                        actor_resume(actor, token)  # surplus: does nothing
                elif what < 12:
                    actor_retire(actor)
                elif what == 12 and close:
                    actor_close(actor)
                elif cancel:
                    probe = address(stress.probes[_random(address(rng)) % stress.expected])
                    # The memory of a probe stays until the end; the actor must be one that we hold.
                    if at_load_ptr(address(probe.request.actor)) == actor:
                        request_cancel(address(probe.request))
                at_add64(address(stress.disturbances), 1)
                actor_put(actor)

    def wait(self, timeout_ms: int) -> bool:
        """Until every request is answered. False: they were not within that time."""
        ms: c_int = timeout_ms
        until: int64_t = monotonic_ns() + ms * cast(int64_t, 1_000_000)
        with nogil:
            while not at_load32(address(self.stress.done)) and monotonic_ns() < until:
                futex_wait(address(self.stress.done), 0, 100)
        return at_load32(address(self.stress.done)) != 0

    def stop(self) -> None:
        """Ends `disturb`."""
        at_store32(address(self.stress.stop), 1)

    @property
    def faults(self) -> dict:
        """What must be 0."""
        return {
            "unanswered": self.stress.expected - at_load64(address(self.stress.answered)),
            "overlaps": self.stress.overlaps,
            "disorders": self.stress.disorders,
            "doubles": self.stress.doubles,
        }

    @property
    def counts(self) -> dict:
        """Answers by outcome, and how often actors were disturbed."""
        found = {number: self.stress.outcomes[number] for number in range(1, 9)}
        found["disturbances"] = self.stress.disturbances
        return found


# --- load -------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _done(actor: pointer[actor_t], request: pointer[request_t]) -> c_int:
    request_answer(request, OUTCOME_MESSAGES)
    return PROCESS_DONE


@cfunc
@nogil
@exceptval(check=False)
def _nothing(actor: pointer[actor_t], request: pointer[request_t]) -> c_int:
    if request.context != NULL:
        request_answer(request, OUTCOME_MESSAGES)
        return PROCESS_DONE
    return PROCESS_PARK


@cfunc
@nogil
@exceptval(check=False)
def _ignore(request: pointer[request_t]) -> void:
    pass


@cclass
class Load:
    """Args: actors: a system that is not started. keys: actors that are held. count: requests."""

    def __cinit__(self, actors: ActorSystem, keys: int, count: int):
        i: uint64_t
        self.actors = actors
        self.count = count
        self.kept = keys
        self.requests = cast(pointer[request_t], calloc(count, sizeof(request_t)))
        self.held = cast(pointer[pointer[actor_t]], calloc(keys, sizeof(pointer[actor_t])))
        if self.requests == NULL or self.held == NULL:
            raise MemoryError
        for i in range(self.kept):
            self.held[i] = actor_get(actors.system, 0, i, 1, 0)

    def __dealloc__(self):
        i: uint64_t
        self.actors.stop()
        for i in range(self.kept):
            if self.held[i] != NULL:
                actor_put(self.held[i])
        free(self.held)
        free(self.requests)

    def dispatch(self, parks: bool = False, hold_ms: int = 0, deadline_ms: int = 0) -> float:
        """Dispatches all requests, to the actors in turn. Returns nanoseconds per dispatch, scheduling included."""
        i: uint64_t
        parking: bint = parks
        hold: int64_t = hold_ms * 1_000_000
        deadline: int64_t = deadline_ms * 1_000_000
        begun: int64_t = monotonic_ns()
        now: int64_t = system_now(self.actors.system)
        failed: uint64_t = 0
        request: pointer[request_t]
        with nogil:
            for i in range(self.count):
                request = address(self.requests[i])
                request.process = _nothing if parking else _done
                request.answer = _ignore
                request.context = NULL
                request.hold_ns = now + hold if hold else 0
                request.deadline_ns = now + deadline if deadline else 0
                failed += actor_dispatch(self.held[i % self.kept], request) != DISPATCH_OK
        if failed:
            raise RuntimeError(f"{failed} requests were refused")
        return cast(double, monotonic_ns() - begun) / self.count

    def run(self) -> float:
        """Runs slices on this thread until nothing is runnable. Nanoseconds per request."""
        begun: int64_t = monotonic_ns()
        with nogil:
            while system_step(self.actors.system, 0):
                pass
        return cast(double, monotonic_ns() - begun) / self.count

    def satisfy(self) -> float:
        """Gives every parked request something and wakes every actor. Nanoseconds per wake."""
        i: uint64_t
        begun: int64_t
        with nogil:
            for i in range(self.count):
                self.requests[i].context = address(self.requests[i])
        begun = monotonic_ns()
        with nogil:
            for i in range(self.kept):
                actor_wake(self.held[i])
        return cast(double, monotonic_ns() - begun) / self.kept

    @property
    def answered(self) -> int:
        """Requests that were answered."""
        i: uint64_t
        count: uint64_t = 0
        for i in range(self.count):
            count += self.requests[i].outcome != 0
        return count
