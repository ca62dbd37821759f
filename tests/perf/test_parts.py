"""The generator's parts agree with simple models: histogram with sorting, checker with sets, templates with the AMQP frame layout."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.perf import process, report, traffic, wire
from flintmq.perf.options import Options, UsageError
from tests.drivers.perf_parts import Checker, histogram_of


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_percentile_is_the_sorted_value_within_a_bucket(values: list[int], share: float) -> None:
    rank = max(1, -(-share * len(values) // 1))
    exact = sorted(values)[int(rank) - 1]
    assert report.percentile(histogram_of(values), share) == pytest.approx(exact, rel=1 / 256, abs=0.5)


@given(st.lists(st.integers(0, 10**9), max_size=50), st.lists(st.integers(0, 10**9), max_size=50))
def test_merged_histograms_are_the_histogram_of_all(left: list[int], right: list[int]) -> None:
    assert report.merge([histogram_of(left), histogram_of(right)]) == histogram_of(left + right)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 3), st.integers(0, 300), st.booleans()), max_size=60))
def test_checker_against_sets(deliveries: list[tuple[int, int, int, int, bool]]) -> None:
    """2 queues, 3 producers, 4 keys: key k belongs to queue k % 2."""
    checker = Checker(2, 3, 4, False)
    seen: set[tuple[int, int, int]] = set()
    due: dict[tuple[int, int], int] = {}
    wanted = {"distinct": 0, "duplicates": 0, "disordered": 0, "corrupt": 0, "misrouted": 0, "redelivered": 0}
    for queue, producer, key, sequence, redelivered in deliveries:
        checker.take(queue, producer, key, sequence, redelivered=redelivered)
        wanted["redelivered"] += redelivered
        if key % 2 != queue:
            wanted["misrouted"] += 1
        elif (producer, key, sequence) in seen:
            wanted["duplicates"] += not redelivered
        else:
            seen.add((producer, key, sequence))
            wanted["distinct"] += 1
            if sequence < due.get((producer, key), 0):
                wanted["disordered"] += not redelivered
            else:
                due[producer, key] = sequence + 1
    assert checker.verdict() == wanted


def test_checker_names_damage_and_strangers() -> None:
    checker = Checker(1, 1, 1, False)
    checker.take(0, 0, 0, 0, damaged=True)
    checker.take(0, 1, 0, 0)  # no such producer
    checker.take(0, 0, 1, 0)  # no such key
    assert checker.verdict()["corrupt"] == 3
    assert checker.verdict()["distinct"] == 0


def frames(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        kind, channel, size = struct.unpack_from(">BHI", data)
        assert channel == 1
        assert data[7 + size] == 0xCE
        found.append((kind, data[7 : 7 + size]))
        data = data[8 + size :]
    return found


@given(
    size=st.one_of(st.integers(16, 200), st.integers(4070, 4110), st.integers(8170, 8200)),
    exchange=st.sampled_from(["default", "direct", "topic", "headers"]),
    random_keys=st.booleans(),
    key=st.integers(0, 65_534),
)
def test_template_offsets_point_at_what_is_patched(size: int, exchange: str, random_keys: bool, key: int) -> None:
    options = Options(size=size, exchange=exchange, random_keys=random_keys and exchange == "topic", prefix="a00000.b", queues=65_535)
    message = traffic.build_message(options, key, 4096)
    method, header, *bodies = frames(message.data)
    assert all(len(payload) <= 4096 - 8 for _, payload in bodies)
    body = b"".join(payload for _, payload in bodies)
    assert len(body) == size == struct.unpack_from(">Q", header[1], 4)[0]
    assert message.data[message.body_at :].startswith(bodies[0][1][:16])
    assert message.data[message.key_at : message.key_at + 5] == b"%05d" % key
    if size >= 24:
        # In one piece, and at the very end: patching it changes the last 8 bytes of the body and nothing else.
        patched = bytearray(message.data)
        patched[message.tail_at : message.tail_at + 8] = b"\xff" * 8
        patched_body = b"".join(payload for _, payload in frames(bytes(patched))[2:])
        assert patched_body == body[:-8] + b"\xff" * 8
    if options.random_keys:
        assert message.data[message.unique_at : message.unique_at + 10] == b"0" * 10
        assert message.data[message.unique_at - 1 : message.unique_at] == b"."
    assert method[1].startswith(struct.pack(">I", wire.BASIC_PUBLISH))


def test_known_bytes_of_a_publish() -> None:
    """Written by hand from AMQP 0-9-1, 1.8.3.7 and 2.3.5: frame, class 60, method 40, reserved, exchange, key, bits."""
    assert wire.publish_method("x", "k") == bytes.fromhex("01 0001 0000000b 003c 0028 0000 0178 016b 00 ce")


@pytest.mark.parametrize(
    "values",
    [
        {"size": 15},
        {"mode": "dance"},
        {"ack": 10, "prefetch": 5},
        {"bindings": 5},
        {"random_keys": True},
        {"queues": 3, "consumers": 2},
        {"same_conn": True, "producers": 2},
        {"mode": "consume"},
        {"rate": -1.0},
    ],
)
def test_contradictions_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Options(**values).check()  # type: ignore[arg-type]


def test_usage_counts_this_process_and_its_children() -> None:
    before = process.usage(process.tree(os.getpid()))
    sum(range(3_000_000))
    after = process.usage(process.tree(os.getpid()))
    assert after.cpu_s > before.cpu_s
    assert before.rss > 1024 * 1024
    assert process.tree(2**22 + 1) == []
