"""A stream read by two services: events are kept, each service has a consumer group, its workers share the events and can be killed.

Run it twice: the groups go on where they were, and the report shows the first events again. Needs a durable broker and pika.
"""

from __future__ import annotations

import json
import sys

import pika

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@127.0.0.1:5672/%2F"
connection = pika.BlockingConnection(pika.URLParameters(URL))

# A stream is declared like a queue. Retention: a week, or 1 GB, whichever is less.
channel = connection.channel()
channel.queue_declare(
    "events",
    durable=True,
    arguments={"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 1_000_000_000, "x-delivery-limit": 5},
)

# Publishing is as ever; basic_publish returns when the event is on disk. The filter value is optional.
channel.confirm_delivery()
for number in range(20):
    shop = ("north", "south")[number % 2]
    channel.basic_publish(
        "",
        "events",
        json.dumps({"number": number}).encode(),
        pika.BasicProperties(headers={"x-stream-filter-value": shop}, delivery_mode=2),
    )


def work(group: str, workers: int, most: int) -> dict[str, list[int]]:
    """`workers` consumers of a group share what it has not seen, `most` events in all. Returns the offsets that each got."""
    got: dict[str, list[int]] = {f"{group}-{number}": [] for number in range(workers)}
    ours = connection.channel()
    ours.basic_qos(prefetch_count=4)  # a stream is never consumed without

    def on_event(ch, method, properties, body):  # type: ignore[no-untyped-def]
        got[method.consumer_tag].append(int(properties.headers["x-stream-offset"]))
        ch.basic_ack(method.delivery_tag)  # in any order; what is not acknowledged comes to another worker

    for tag in got:
        # x-stream-offset counts when the group is new; from then on the broker knows its place.
        ours.basic_consume("events", on_event, consumer_tag=tag, arguments={"x-group": group, "x-stream-offset": "first"})
    while sum(map(len, got.values())) < most:
        connection.process_data_events(time_limit=1)
    ours.close()
    return got


for group, workers in (("billing", 2), ("shipping", 1)):
    for tag, offsets in work(group, workers, 20).items():
        print(f"{tag}: offsets {sorted(offsets)}")

# Without a group: anybody may read from anywhere, and it costs the others nothing.
report = connection.channel()
report.basic_qos(prefetch_count=10)
first = []
for _, properties, _ in report.consume("events", arguments={"x-stream-offset": "first", "x-stream-filter": "north"}):
    first.append(int(properties.headers["x-stream-offset"]))
    if len(first) == 5:
        break
report.close()
print(f"first events of the north: offsets {first}")
connection.close()
