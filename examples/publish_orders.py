"""Publishes a thousand orders to the queue `orders`, each confirmed by the broker. Declares the stream `turnover`, too."""

from __future__ import annotations

import datetime
import json
import random
import uuid

import pika

connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", 5672))
channel = connection.channel()
channel.queue_declare("orders", durable=True)
channel.queue_declare("turnover", durable=True, arguments={"x-queue-type": "stream"})
channel.confirm_delivery()
for number in range(1_000):
    order = {"number": number, "shop": random.choice(["north", "south", "web"]), "cents": random.randint(100, 99_999)}
    order["at"] = datetime.datetime.now(datetime.UTC).isoformat()
    # A message id of its own lets the Spark source recognise the message after a crash.
    properties = pika.BasicProperties(message_id=str(uuid.uuid4()), content_type="application/json", delivery_mode=2)
    channel.basic_publish("", "orders", json.dumps(order).encode(), properties, mandatory=True)
connection.close()
print("1,000 orders published and confirmed")
