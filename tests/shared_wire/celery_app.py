"""The Celery application of test_cluster.py, whose tasks wait in a shared queue: each notes its number in a file."""

from __future__ import annotations

import os

from celery import Celery
from kombu import Queue

NAME = os.environ.get("CELERY_TEST_QUEUE", "celery-shared")

app = Celery("celery_app", broker=os.environ.get("CELERY_TEST_URLS", "amqp://").split(";"))
app.conf.update(
    task_default_queue=NAME,
    task_queues=[Queue(NAME, durable=True, queue_arguments={"x-queue-type": "shared"})],
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=2,
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_heartbeat=5,
    task_publish_retry_policy={"max_retries": 60, "interval_start": 0, "interval_step": 0.2, "interval_max": 1},
)


@app.task
def note(number: int) -> None:
    """One line of the file, in one write: several processes append to it."""
    file = os.open(os.environ["CELERY_TEST_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, b"%d\n" % number)
    finally:
        os.close(file)
