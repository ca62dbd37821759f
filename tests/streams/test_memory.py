"""Tables of a stream's groups and readers are in the account of memory while they are there (streams/group, open_list, stream_batch)."""

from __future__ import annotations

import gc

from flintmq.core.memory_account import bytes_by_kind

from .kit import drain, filled, member

KIB = 1024


def test_what_groups_and_readers_hold_is_counted_and_given_back() -> None:
    gc.collect()
    before = bytes_by_kind()["streams"]

    def held() -> int:
        return bytes_by_kind()["streams"] - before

    log, stream = filled(5000)
    assert held() == 0
    group = member(stream, group=b"g")
    assert KIB <= held() <= 8 * KIB
    assert len(drain(group)) == 5000
    assert held() >= 5000 * 24, "what is delivered and not settled"
    alone = held()
    readers = [member(stream, group=None, filters=[b"x" * 1000]) for _ in range(10)]
    assert alone + 10 * 1300 <= held() <= alone + 10 * 4 * KIB
    for reader in readers:
        reader.detach()
    del readers, reader
    assert held() == alone
    group.detach()
    del group, stream, log
    gc.collect()
    assert held() == 0
