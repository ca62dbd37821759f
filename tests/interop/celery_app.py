"""The Celery application of test_celery.py: its worker process imports it. Broker, queue and backend come from the environment."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

app = Celery("celery_app", broker=os.environ.get("CELERY_TEST_URL", "amqp://"), backend=os.environ.get("CELERY_TEST_BACKEND", "rpc://"))
app.conf.update(
    task_default_queue=os.environ.get("CELERY_TEST_QUEUE", "celery-test"),
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    task_track_started=True,
    worker_send_task_events=True,
    task_send_sent_event=True,
    broker_connection_retry_on_startup=True,
    result_expires=600,
)


@app.task
def add(x: int, y: int) -> int:
    """The sum."""
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    """The sum of a list: body of the chord."""
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def flaky(self: Any) -> int:
    """Fails twice, then gives the number of retries."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.2, exc=ValueError("again"))
    return int(self.request.retries)


@app.task
def fail() -> None:
    """Always fails."""
    raise KeyError("no such thing")


@app.task
def now(_ignored: object = None) -> float:
    """The wall-clock time of execution."""
    return time.time()


@app.task
def where() -> int:
    """The process that runs the task."""
    time.sleep(0.3)
    return os.getpid()
