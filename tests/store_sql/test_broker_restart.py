"""A virtual host on SQL definitions comes back after a restart as its durable part was, and declares what it may."""

from __future__ import annotations

from pathlib import Path

from flintmq.store.sql.definitions import SqlDefinitions
from flintmq.vhost.virtual_host import VirtualHost
from tests.vhost.fakes import FakeCore


def start(directory: Path) -> tuple[SqlDefinitions, VirtualHost]:
    definitions = SqlDefinitions.open(directory)
    vhost = VirtualHost("/", definitions, FakeCore)
    vhost.restore()
    return definitions, vhost


def test_the_durable_part_survives(tmp_path: Path) -> None:
    definitions, vhost = start(tmp_path)
    vhost.run(vhost.declare_exchange("events", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"}))
    vhost.run(vhost.declare_exchange("passing", "topic"))
    vhost.run(vhost.declare_queue("work", durable=True, arguments={"x-max-priority": 5}))
    vhost.run(vhost.declare_queue("temporary"))
    vhost.run(vhost.bind_queue("work", "events", b"a.*", {"x": b"\xff"}))
    vhost.run(vhost.bind_queue("work", "amq.topic", b"b.#"))
    vhost.run(vhost.bind_queue("work", "passing", b"c"))
    vhost.run(vhost.bind_queue("temporary", "events", b"a.*"))
    vhost.run(vhost.bind_exchange("amq.fanout", "events", b"#"))
    queue_id = vhost.queue("work").queue_id
    definitions.close()

    definitions, vhost = start(tmp_path)
    assert vhost.queue("work").queue_id == queue_id
    assert "temporary" not in vhost.queues
    assert "passing" not in vhost.exchanges
    assert vhost.binding_count == 3
    assert [queue.name for queue in vhost.route("events", b"a.b")] == ["work"]
    assert [queue.name for queue in vhost.route("amq.topic", b"b.c.d")] == ["work"]
    # The same declares are no change; a new queue gets an id above all earlier ones.
    vhost.run(vhost.declare_queue("work", durable=True, arguments={"x-max-priority": 5}))
    vhost.run(vhost.declare_exchange("events", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"}))
    vhost.run(vhost.declare_queue("more", durable=True))
    assert vhost.queue("more").queue_id > queue_id
    vhost.run(vhost.delete_queue("work"))
    definitions.close()

    definitions, vhost = start(tmp_path)
    assert list(vhost.queues) == ["more"]
    assert vhost.binding_count == 1
    definitions.close()
