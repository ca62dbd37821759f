"""Output that refers to contents is the same bytes as a copy; contents take memory as their bytes come, and can leave thin chunks."""

from __future__ import annotations

import random

import pytest

from flintmq.core.content import bytes_mapped
from flintmq.core.memory_account import bytes_by_kind, bytes_held
from tests.drivers.output_driver import ContentDriver, OutputDriver

KIB = 1024
MIB = 1024 * KIB


def frames(body: bytes, channel: int, most: int) -> bytes:
    out = b""
    for at in range(0, len(body), most):
        piece = body[at : at + most]
        out += b"\x03" + channel.to_bytes(2, "big") + len(piece).to_bytes(4, "big") + piece + b"\xce"
    return out


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_with_references_is_what_copies_would_be(seed: int) -> None:
    rng = random.Random(seed)
    out, model = OutputDriver(), b""
    for _ in range(200):
        what = rng.random()
        if what < 0.4:
            data = rng.randbytes(rng.randrange(1, 300))
            out.write(data)
            model += data
        elif what < 0.6:
            body, channel, most = rng.randbytes(rng.randrange(1, 5000)), rng.randrange(65536), rng.choice((8, 100, 1000, 4088, 9000))
            out.refer(body, channel, most)
            model += frames(body, channel, most)
        else:
            got = out.take(rng.randrange(1, 3000))
            assert model.startswith(got) and (got or not model)
            model = model[len(got) :]
        assert out.pending == len(model)
    while model:
        got = out.take(7000)
        assert got and model.startswith(got)
        model = model[len(got) :]
    assert out.pending == 0 and out.take(10) == b""


def test_many_references_to_large_bodies_hold_no_copy_and_end_with_the_buffer() -> None:
    before, output = bytes_mapped(), bytes_by_kind()["output"]
    out = OutputDriver()
    for _ in range(10):
        out.refer(bytes(MIB), 1, 128 * KIB)
    assert bytes_mapped() - before < 11 * MIB
    assert bytes_by_kind()["output"] - output < 4 * KIB
    out.take(MIB + 100 * KIB)
    assert bytes_mapped() - before < 10 * MIB
    out.release()
    assert bytes_mapped() == before and bytes_by_kind()["output"] == output


def test_output_is_counted_where_its_buffer_grows() -> None:
    held, output = bytes_held(), bytes_by_kind()["output"]
    out = OutputDriver()
    out.write(bytes(100 * KIB))
    assert bytes_by_kind()["output"] - output == 128 * KIB
    assert bytes_held() - held == 128 * KIB
    out.release()
    assert bytes_held() == held


@pytest.mark.parametrize("neighbours", [False, True])
def test_a_content_takes_memory_as_its_bytes_come(neighbours: bool) -> None:
    """Growing inside its chunk, out of it into one of its own, and there by moving pages: the bytes stay what they were."""
    before = bytes_mapped()
    rng = random.Random(1)
    header = rng.randbytes(40)
    content = ContentDriver(header, 8)
    assert bytes_mapped() - before <= 256 * KIB
    body, room = b"", 8
    while len(body) < 5 * MIB:
        data = rng.randbytes(rng.choice((1, 100, 4000, 128 * KIB)))
        room = max(room, min(5 * MIB + 128 * KIB, max(2 * room, len(body) + len(data))) if len(body) + len(data) > room else room)
        if neighbours:
            content.neighbour(rng.randrange(1, 3000))
        content.arrive(data, room)
        body += data
        assert bytes_mapped() - before <= 2 * len(body) + 768 * KIB
    assert content.body == body and content.header == header
    del content
    assert bytes_mapped() == before


def test_a_small_content_alone_in_its_chunk_can_leave_it() -> None:
    before = bytes_mapped()
    content = ContentDriver(bytes(14), 100)
    content.arrive(b"x" * 100, 100)
    assert not content.thin, "its arena still allocates from the chunk"
    for _ in range(300):
        content.neighbour(1000)
    assert content.thin
    assert bytes_mapped() - before == 512 * KIB
    content.move()
    assert bytes_mapped() - before == 256 * KIB
    assert content.body == b"x" * 100 and not content.thin
