"""Reading ahead at a start: the newest containers first, within its bound, and never a reason for a start to fail."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from flintmq.store import read_ahead as module
from flintmq.store.log import file_port
from flintmq.store.log.containers import HEADER_SIZE


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths that are read."""
    found: list[str] = []

    lock = threading.Lock()

    def read(paths: list[str]) -> None:
        with lock:
            found.extend(paths)

    monkeypatch.setattr(module, "read_into_cache", read)
    return found


def run(directory: Path, most: int) -> None:
    for thread in module.read_ahead(directory, most):
        thread.join()


def make(directory: Path, log: str, *names: str, size: int = 1000) -> list[str]:
    (directory / log).mkdir(parents=True)
    for name in names:
        (directory / log / name).write_bytes(bytes(size))
    return [str(directory / log / name) for name in names if name.endswith(".flog")]


def test_the_logs_are_asked_for_in_the_order_in_which_a_start_reads_them(tmp_path: Path, asked: list[str]) -> None:
    """Transactions before messages, each from the newest container back; nothing else is touched."""
    messages = make(tmp_path, "messages", "0001.flog", "0002.flog", "0003.tmp")
    transactions = make(tmp_path, "transactions", "0007.flog")
    make(tmp_path, "pages", "0001.flog")
    run(tmp_path, 1 << 30)
    assert sorted(asked) == sorted(transactions + messages)
    assert module._paths(tmp_path, 1 << 30) == transactions + messages[::-1]


def test_no_more_than_the_bound_is_asked_for(tmp_path: Path, asked: list[str]) -> None:
    """A container that would go beyond the bound, and all after it, are left to the start itself."""
    messages = make(tmp_path, "messages", "0001.flog", "0002.flog", "0003.flog")
    run(tmp_path, 2500)
    assert sorted(asked) == messages[1:]


def test_nothing_there_is_no_error(tmp_path: Path, asked: list[str]) -> None:
    """A new broker has no store yet."""
    run(tmp_path / "none", 1000)
    assert asked == []


def test_files_that_are_gone_or_refused_are_no_error(tmp_path: Path) -> None:
    """Reading says nothing of what can't be read, goes on behind it, and ends."""
    path = tmp_path / "there"
    path.write_bytes(b"x" * 1_000_000)
    file_port.read_into_cache([str(tmp_path / "gone"), str(tmp_path), str(path)])
    file_port.read_into_cache([])
    assert path.read_bytes() == b"x" * 1_000_000


def test_with_an_index_log_little_of_the_messages_is_asked_for(tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A start from a checkpoint reads the index log and the end of the message log."""
    monkeypatch.setattr(module, "CHECKPOINTED", 1500)
    messages = make(tmp_path, "messages", "0001.flog", "0002.flog", "0003.flog")
    index = make(tmp_path, "index", "0001.flog")
    run(tmp_path, 1 << 30)
    assert sorted(asked) == sorted(index + messages[2:])


def test_the_header_of_each_container_is_asked_for(tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of those whose records a start does not read; one that can't be opened ends it in silence."""
    headers: list[tuple[int, int]] = []
    monkeypatch.setattr(module.os, "posix_fadvise", lambda descriptor, start, size, advice: headers.append((start, size)))
    messages = make(tmp_path, "messages", "0001.flog", "0002.flog", "0003.flog", "0004.tmp")
    make(tmp_path, "index", "0001.flog")
    run(tmp_path, 1500)
    assert headers == [(0, module.HEADER_BYTES)] * len(messages) and module.HEADER_BYTES >= HEADER_SIZE
    Path(messages[1]).unlink()
    Path(messages[1]).symlink_to(tmp_path / "gone")
    run(tmp_path, 1500)
    assert len(headers) == len(messages) + 1
