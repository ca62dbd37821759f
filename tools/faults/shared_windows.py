"""Windows of 200 operations on shared queues of their own, beside the campaign: clients on all brokers publish and get, and the history has
to be one that a queue can have (tools/linearizability).

in: the campaign's clients. out: verdicts.
A get acks by itself: what it was given may come again, flagged, when an owner is lost; a client that lost its connection may have been
given the head. Each client stays with its broker.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pika

from tools.faults.shared_clients import LOST, Clients
from tools.linearizability.checker import UNKNOWN, Operation, check
from tools.linearizability.models import OwnedQueueModel
from tools.linearizability.recorder import BACKLOG, Recorder

# seconds between two operations of a client, and those after which a window ends whatever it has; and for which one is emptied
_PACE_S, _WINDOW_S, _EMPTY_S = 0.02, 60.0, 60.0
# states of one search: right windows need some thousands
_STEPS_MAX = 50_000
_UNKNOWN_OUTCOMES = (pika.exceptions.NackError, pika.exceptions.UnroutableError)


def judged(name: str, operations: Sequence[Operation]) -> tuple[bool, str]:
    """(whether the search came to an end, the violation in one line; "": there is none)."""
    verdict = check(OwnedQueueModel(operations, is_watched=False), operations, _STEPS_MAX)
    return verdict.decided, "" if verdict.ok or not verdict.decided else f"{name}: {' | '.join(str(verdict).split(chr(10)))}"


class Windows:
    """One window after the other, until `stop`."""

    def __init__(self, clients: Clients, seed: int) -> None:
        self._clients = clients
        self._brokers = len(clients.cluster.brokers)
        self._seed = seed
        self._runs = threading.Event()
        self._over = threading.Event()
        self.checked = self.undecided = 0
        self.violations: list[str] = []
        self.wrong: dict[str, list[str]] = {}  # the operations of windows that are

    def start(self) -> None:
        self._runs.set()
        self._clients.begin(self._all, 0)

    def keep(self, folder: Path) -> None:
        """Writes the histories of windows that are wrong."""
        for queue, lines in self.wrong.items():
            (folder / f"{queue}.history").write_text("\n".join(lines))

    def stop(self) -> None:
        """The window that is under way is judged, too. Waits, two minutes at most."""
        self._runs.clear()
        self._over.wait(_WINDOW_S + _EMPTY_S)

    def _all(self, number: int) -> None:
        try:
            while self._runs.is_set():
                number += 1
                self._window(f"window{number}", number)
        finally:
            self._over.set()

    def _window(self, queue: str, number: int) -> None:
        self._on_a_channel(self._home(), lambda channel: channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "shared"}))
        recorder, until_s = Recorder(), time.monotonic() + _WINDOW_S
        ended = [threading.Event() for _ in range(self._brokers)]

        def is_over() -> bool:
            return recorder.is_over or time.monotonic() > until_s or not self._runs.is_set()

        for client, event in enumerate(ended):
            self._clients.begin(functools.partial(self._work, queue, recorder, is_over, event), client)
        for event in ended:
            event.wait()
        self._empty(queue, recorder)
        is_decided, violation = judged(queue, recorder.operations)
        self.checked += is_decided
        self.undecided += not is_decided
        if violation:
            self.violations.append(violation)
            self.wrong[queue] = [str(one) for one in recorder.operations]
        self._on_a_channel(number, lambda channel: channel.queue_delete(queue))

    def _home(self) -> int:
        """The broker that has the campaign's queue: faults look for that one."""
        owner = self._clients.cluster.owner()
        return 0 if owner is None else self._clients.cluster.brokers.index(owner)

    def _on_a_channel(self, number: int, work: Callable[[Any], object]) -> bool:
        """At a broker, or the next ones. Whether it was done."""
        for attempt in range(number, number + 10 * self._brokers):
            with contextlib.suppress(*LOST), self._clients.channel(attempt) as channel:
                work(channel)
                return True
            time.sleep(0.5)
        return False

    # --- clients ----------------------------------------------------------------------------------------------------

    def _work(self, queue: str, recorder: Recorder, is_over: Callable[[], bool], ended: threading.Event, client: int) -> None:
        chance = random.Random(f"{self._seed} {queue} {client}")
        try:
            while not is_over():
                with contextlib.suppress(*LOST), self._clients.channel(client) as channel:
                    channel.queue_declare(queue, passive=True)
                    channel.confirm_delivery()
                    while not is_over():
                        if chance.random() < 0.5 and _backlog(recorder) < BACKLOG:
                            _publish(channel, queue, recorder, client)
                        else:
                            get(channel, queue, recorder, client)
                        time.sleep(_PACE_S)
                time.sleep(0.2)
        finally:
            ended.set()

    def _empty(self, queue: str, recorder: Recorder) -> None:
        """Until two brokers after each other say that there is nothing, and nothing was there."""
        until_s = time.monotonic() + _EMPTY_S
        attempt = quiet = 0
        while time.monotonic() < until_s and quiet < 2:
            attempt += 1
            with contextlib.suppress(*LOST), self._clients.channel(attempt) as channel:
                taken = 0
                while get(channel, queue, recorder, self._brokers):
                    taken += 1
                count = channel.queue_declare(queue, passive=True).method.message_count
                quiet = 0 if taken or count else quiet + 1
            time.sleep(0.2)
        if quiet == 2:
            recorder.note(self._brokers, "emptied", (), None, recorder.now())


def _backlog(recorder: Recorder) -> int:
    operations = list(recorder.operations)
    taken = sum(len(one.outcome) for one in operations if one.kind == "take" and not one.is_open)
    return sum(one.kind == "enqueue" and not one.is_open for one in operations) - taken


def _publish(channel: Any, queue: str, recorder: Recorder, client: int) -> None:
    """Raises: LOST."""
    message, called, outcome = recorder.next_id(), recorder.now(), UNKNOWN
    try:
        channel.basic_publish("", queue, b"%d" % message, pika.BasicProperties(delivery_mode=2), mandatory=True)
        outcome = None
    except _UNKNOWN_OUTCOMES:
        time.sleep(0.1)  # no flood of refusals while there is no owner
    finally:
        recorder.note(client, "enqueue", (message,), outcome, called)


def get(channel: Any, queue: str, recorder: Recorder, client: int) -> bool:
    """Whether there was a message. Raises: LOST."""
    called, outcome = recorder.now(), UNKNOWN
    try:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        outcome = () if method is None else ((int(body), bool(method.redelivered)),)
    finally:
        recorder.note(client, "take", (), outcome, called)
    return bool(outcome)
