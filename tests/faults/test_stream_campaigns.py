"""Short runs of T4 and T5 over streams against the shipped process: offsets stay, groups get everything, nothing comes back unflagged.

The long runs are `python -m tools.faults.stream_kill_loop`; docs/RELIABILITY.md holds their results.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.again import until_enough, until_found
from tests.support.rawamqp import RawChannel, RawConnection
from tools.faults import shim
from tools.faults.power_loss import PowerLoss
from tools.faults.stream_kill_loop import StreamKillLoop, broker

pytestmark = pytest.mark.campaign
needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))


@pytest.mark.timeout(600)
def test_t4_streams(durable: None, folder: Path) -> None:
    """T4: five lives under load, ended by kill -9, at named points or by SIGTERM, then all is read and judged: no violation."""
    loop = StreamKillLoop(broker(folder / "data"), folder, seed=4, epoch=5, failpoints=0.3, load_s=(0.2, 0.5))
    least = {"confirmed": 100, "delivered": 500, "redelivered": 10, "ack": 100, "requeue": 1}
    until_enough(loop, 5, lambda summary: all(summary.counts[name] >= count for name, count in least.items()))


@needs_shim
@pytest.mark.timeout(600)
def test_t5_streams(durable: None, folder: Path) -> None:
    """T5: three lives that end with a loss of power, after which unsynced sectors and names are gone: no violation."""
    power = PowerLoss(folder / "data", folder / "shim")
    loop = StreamKillLoop(broker(folder / "data"), folder, seed=5, epoch=3, gentle=0.0, load_s=(0.2, 0.5), long=0.0, power=power)
    summary = until_enough(loop, 3, lambda summary: summary.counts["confirmed"] > 100)
    assert summary.power["strikes"] >= summary.cycles and not summary.power["overflow"], summary.to_json()


@needs_shim
@pytest.mark.timeout(300)
def test_t5_streams_finds_a_sync_that_does_nothing(durable: None, folder: Path) -> None:
    """T5's own test: with the syncs of the logs taken away, the same loop reports what streams lost."""
    power = PowerLoss(folder / "data", folder / "shim", lies=("sync",), suffix=".flog")
    loop = StreamKillLoop(broker(folder / "data"), folder, seed=6, epoch=3, gentle=0.0, load_s=(0.3, 0.5), long=0.0, power=power)
    assert not until_found(loop, 3).ok


def joined(connection: RawConnection) -> RawChannel:
    """A consumer of the group `g`."""
    channel = connection.channel(1)
    channel.call("basic.qos", prefetch_count=10)
    channel.consume("s", arguments={"x-group": "g", "x-stream-offset": "first"})
    return channel


@pytest.mark.timeout(120)
def test_what_a_killed_life_may_have_delivered_is_flagged_though_the_place_is_of_a_clean_stop(durable: None, folder: Path) -> None:
    """A group whose place was noted at a clean stop, and not since: in the life that followed and was killed its members may have got
    messages in the last moments, so all that was there comes flagged."""
    target = broker(folder / "data")
    for life, flags in enumerate(([False] * 3, [False] * 3, [True] * 3), 1):
        with RawConnection("127.0.0.1", target.start()).open() as connection:
            if life == 1:
                channel = connection.channel(1)
                channel.call("queue.declare", queue="s", durable=True, arguments={"x-queue-type": "stream"})
                channel.call("confirm.select")
                channel.call("basic.qos", prefetch_count=1)
                tag = channel.consume("s", arguments={"x-group": "g", "x-stream-offset": "first"})
                channel.call("basic.cancel", consumer_tag=tag)
                for body in (b"0", b"1", b"2"):
                    channel.publish(body, routing_key="s", delivery_mode=2)
                    channel.expect("basic.ack")
                connection.close()
            else:
                got = joined(connection).deliveries(3)
                assert [method.redelivered for method in got] == flags
                if life == 2:
                    target.kill()  # before the place is noted, most of the time
                    continue
        assert target.stop() == 0
