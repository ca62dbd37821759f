"""A client in a loop of mistakes does not fill the log: each user has so many lines in a second, and what is left out is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from flintmq.testing.broker import Broker

MISTAKES = 60


def test_channel_errors_of_one_user_have_so_many_lines(start: Callable[..., Broker], connect: Any, caplog: Any) -> None:
    """Sixty channel errors, within a second or in some: no more than four lines for each second, and a line says how many had none."""
    broker = start(limits={"peer_lines": 4})
    connection = connect(broker)
    clock = broker.node.broker.clock
    before = clock.monotonic_ns() // 1_000_000_000
    for number in range(1, MISTAKES + 1):
        channel = connection.channel(number)
        channel.send("queue.declare", queue="nobody", passive=True)
        channel.expect("channel.close")
    seconds = clock.monotonic_ns() // 1_000_000_000 - before + 1
    lines = [one for one in caplog.text.splitlines() if "channel error" in one]
    assert 0 < len(lines) <= 4 * seconds
    told = sum(int(found[1]) for line in lines if (found := re.search(r"\((\d+) more lines about 'guest' were left out\)", line)))
    left_out = broker.node.broker.lines.left_out_total
    assert len(lines) + left_out == MISTAKES and told <= left_out
