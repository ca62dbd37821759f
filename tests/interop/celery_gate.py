"""What the Celery gate (test_celery_gate.py) asks of a worker. It runs under each Celery from 4.4 on, as application and as driver.

python celery_gate.py SCENE [ARGUMENTS]     prints what came of it, as JSON
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import threading
import time
from typing import Any

from celery import Celery
from celery.exceptions import TaskRevokedError

QUEUE = os.environ.get("CELERY_GATE_QUEUE", "gate")
app = Celery("celery_gate", broker=os.environ.get("CELERY_GATE_URL", "amqp://"), backend="rpc://")
app.conf.update(
    task_default_queue=QUEUE,
    task_queue_max_priority=10,
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_track_started=True,
    worker_send_task_events=True,
    broker_connection_retry_on_startup=True,
)
TIMEOUT_S = 60


@app.task
def add(x: int, y: int) -> int:
    """The sum."""
    return x + y


@app.task(bind=True, max_retries=3)
def flaky(self: Any) -> int:
    """Fails twice."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.2, exc=ValueError("again"))
    return int(self.request.retries)


@app.task
def now() -> float:
    """When it runs."""
    return time.time()


@app.task
def note(path: str, word: str, seconds: float) -> None:
    """Writes a line at its beginning and one at its end."""
    for what in ("begun", "ended"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{what} {word}\n")
        if what == "begun":
            time.sleep(seconds)


def results() -> Any:
    """Sums, and the retries of a task that fails twice."""
    sent = [add.delay(number, number) for number in range(30)]
    return [one.get(timeout=TIMEOUT_S) for one in sent], flaky.delay().get(timeout=TIMEOUT_S)


def countdown() -> Any:
    """How early the earliest of more countdown tasks than the prefetch ran, and whether an ordinary one had to wait for them."""
    start = time.time()
    held = [now.apply_async(countdown=5) for _ in range(5)]
    ran = now.delay().get(timeout=TIMEOUT_S)
    times = [one.get(timeout=TIMEOUT_S) for one in held]
    return min(times) - start, ran < min(times)


def hours() -> Any:
    """Tasks of hours, more than the prefetch: how many the worker holds, and how long an ordinary task takes beside them."""
    node = sys.argv[2]
    eta = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=3)
    held = {now.apply_async(eta=eta).id, now.apply_async(countdown=7200).id, now.apply_async(countdown=3600).id}
    start = time.time()
    seen: set[str] = set()
    while not held <= seen and time.time() < start + TIMEOUT_S:
        scheduled = app.control.inspect([node], timeout=30).scheduled() or {}
        seen = {one["request"]["id"] for one in scheduled.get(node, [])}
    start = time.time()
    ran = now.delay().get(timeout=TIMEOUT_S)
    return len(held & seen), ran - start


def revoke() -> Any:
    """A revoked task never runs."""
    sent = now.apply_async(countdown=4)
    sent.revoke()
    try:
        sent.get(timeout=TIMEOUT_S)
    except TaskRevokedError:
        return "revoked"
    return "ran"


def control() -> Any:
    """Remote control: who answers, the pool's size before and after it grew, and the queue that is consumed."""
    node = sys.argv[2]
    pong = app.control.ping([node], timeout=30)
    before = app.control.inspect([node], timeout=30).stats()[node]["prefetch_count"]
    if sys.argv[3] == "prefork":
        app.control.pool_grow(2, destination=[node], reply=True, timeout=30)
    after = app.control.inspect([node], timeout=30).stats()[node]["prefetch_count"]
    queues = [one["name"] for one in app.control.inspect([node], timeout=30).active_queues()[node]]
    return list(pong[0][node].values()), before, after, queues


def events() -> Any:
    """Kinds of events of one task."""
    seen: list[str] = []
    ready, done = threading.Event(), threading.Event()
    mine = f"gate-{time.time()}"

    def heard(event: dict[str, Any]) -> None:
        if event.get("uuid") == mine:
            seen.append(event["type"])
            if event["type"] == "task-succeeded":
                done.set()

    def listen() -> None:
        with app.connection() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": heard})
            with receiver.consumer_context() as (consuming, _channel, _consumers):
                ready.set()
                while not done.is_set():
                    try:
                        consuming.drain_events(timeout=0.5)
                    except OSError:  # its time-out
                        continue

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    ready.wait(TIMEOUT_S)
    add.apply_async((1, 1), task_id=mine).get(timeout=TIMEOUT_S)
    done.wait(TIMEOUT_S)
    thread.join(TIMEOUT_S)
    return sorted(set(seen))


def send_notes() -> Any:
    """Publishes and does not wait. Arguments: a file, then word:priority:seconds each."""
    for one in sys.argv[3:]:
        word, priority, seconds = one.split(":")
        note.apply_async((sys.argv[2], word, float(seconds)), priority=int(priority))
    return len(sys.argv[3:])


SCENES = {scene.__name__: scene for scene in (results, countdown, hours, revoke, control, events, send_notes)}

if __name__ == "__main__":
    print(json.dumps(SCENES[sys.argv[1]]()))
