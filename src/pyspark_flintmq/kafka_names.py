"""The counterparts of the options of Spark's Kafka connector, for those who come from there.

In: the name of an option that nobody here knows. Out: a hint; the names as Kafka's documentation and people write them.
"""

from __future__ import annotations

import re

# Options of Spark's Kafka connector and those of Kafka's clients that people try -> what has their place here.
KAFKA = {
    "assign": "'queue' or 'queues' name what is read; a stream has one partition",
    "endingOffsetsByTimestamp": "use 'endingTimestamp'",
    "failOnDataLoss": "'failOnDataLoss' is for spark.readStream",
    "fetchOffset.numRetries": "'timeout' says for how long the source tries again",
    "fetchOffset.retryIntervalMs": "'timeout' says for how long the source tries again",
    "groupIdPrefix": "'subscription' names the query in the broker",
    "kafka.acks": "a batch is published whole and is durable, always",
    "kafka.auto.offset.reset": "use 'startingOffsets'",
    "kafka.bootstrap.servers": "use 'url' (grpc://HOST:PORT,HOST:PORT), or 'host' and 'flightPort'",
    "kafka.client.id": "'subscription' names the query in the broker",
    "kafka.enable.auto.commit": "a batch is committed when Spark's commit log has it, never before",
    "kafka.enable.idempotence": "a batch is published once, always",
    "kafka.fetch.max.bytes": "use 'maxBytesPerTrigger'",
    "kafka.group.id": "'subscription' names the query in the broker",
    "kafka.isolation.level": "a message of a transaction is there when its transaction is committed, always",
    "kafka.max.partition.fetch.bytes": "use 'maxBytesPerTrigger'",
    "kafka.max.poll.records": "use 'maxMessagesPerTrigger'",
    "kafka.request.timeout.ms": "use 'timeout', in seconds",
    "kafka.sasl.jaas.config": "use 'user' and 'password'",
    "kafka.sasl.mechanism": "use 'user' and 'password'",
    "kafka.sasl.password": "use 'password' or 'passwordFile'",
    "kafka.sasl.username": "use 'user'",
    "kafka.security.protocol": "use 'url' (grpc+tls://HOST:PORT) and 'tlsCa'",
    "kafka.session.timeout.ms": "use 'timeout', in seconds",
    "kafka.ssl.ca.location": "use 'tlsCa', a PEM file",
    "kafka.ssl.truststore.location": "use 'tlsCa', a PEM file",
    "kafka.transactional.id": "a stream is named by its checkpoint, a batch write by 'txnId'",
    "kafkaConsumer.pollTimeoutMs": "use 'timeout', in seconds",
    "maxRecordsPerPartition": "use 'minPartitions', and 'maxMessagesPerTrigger' for the size of a batch",
    "startingOffsetsByTimestamp": "use 'startingTimestamp'",
    "startingOffsetsByTimestampStrategy": "a start at a time begins with the first message from then on",
    "subscribe": "use 'queue' or 'queues'",
    "subscribePattern": "use 'queuePattern', with * and ? in place of a regular expression",
    "topic": "use 'queue', or 'exchange' and 'routingKey'",
    "topics": "use 'queue' or 'queues'",
}
# The same without what people leave out: `groupId`, `group.id` and `kafka.group.id` are one thing.
_BARE = {re.sub(r"^kafka(consumer)?|[^a-z0-9]", "", name.lower()): hint for name, hint in KAFKA.items()}


def kafka_hint(key: str) -> str:
    """What to do in place of an option of Kafka's; empty: it is none that is known."""
    name = key.lower()
    hint = _BARE.get(re.sub(r"^kafka(consumer)?\.|[^a-z0-9]", "", name), "")
    return hint or ("it is one of Kafka's client, which is not used" if name.startswith(("kafka.", "kafkaconsumer.")) else "")


def kafka_names() -> list[str]:
    """The names as they are documented, and as people shorten them: `kafka.group.id`, `groupId`."""
    shorter = [re.sub(r"^kafka(Consumer)?\.", "", name).split(".") for name in KAFKA]
    return [*KAFKA, *(first + "".join(word[:1].upper() + word[1:] for word in rest) for first, *rest in shorter)]
