"""The verdict over a trace: foreign writes, shared mappings and answers without a sync are found; a right trace is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.faults.syscalls import judge


def hexed(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


ACK = '7 sendto(9<socket:[1]>, "\\x01\\x00\\x01\\x00\\x00\\x00\\x0d\\x00\\x3c\\x00\\x50\\x00"..., 21, MSG_NOSIGNAL, NULL, 0) = 21'


def line(call: str, path: str = "", rest: str = "", result: str = "0") -> str:
    """One line of strace -f -y -xx: PATH is the file behind the descriptor."""
    return f"7 {call}(5<{hexed(path)}>{rest}) = {result}"


def found(folder: Path, *lines: str) -> list[str]:
    data = folder / "data"
    (data / "messages").mkdir(parents=True, exist_ok=True)
    trace = folder / "trace"
    trace.write_text("\n".join(each.replace("DATA", str(data)) for each in lines) + "\n")
    return [each[:2] for each in judge(trace, data).violations]


def test_right_trace(tmp_path: Path) -> None:
    """Log writes with a sync before the answer, SQLite's calls, and anything outside the directory."""
    log, sql = str(tmp_path / "data/messages/1.flog"), str(tmp_path / "data/definitions.db-wal")
    lines = [line("pwrite64", log), line("fdatasync", log), ACK, line("pwrite64", sql), line("fdatasync", sql), line("write", "/var/x")]
    lines += [f'7 openat(3<{hexed(str(tmp_path / "data"))}>, "{hexed("messages/2.flog")}", O_RDWR|O_CREAT, 0600) = 6']
    lines += [line("mmap", log, ", PROT_READ, MAP_SHARED"), line("fsync", str(tmp_path / "data/messages"))]
    assert found(tmp_path, *lines) == []


@pytest.mark.parametrize(
    ("rule", "call", "name", "rest"),
    [
        ("N1", "write", "messages/1.flog", ""),
        ("N1", "pwrite64", "stray.json", ""),
        ("N1", "syncfs", "messages/1.flog", ""),
        ("N2", "mmap", "messages/1.flog", ", PROT_READ|PROT_WRITE, MAP_SHARED"),
        ("N1", "unlink", "definitions.db", ""),
    ],
)
def test_foreign_write(tmp_path: Path, rule: str, call: str, name: str, rest: str) -> None:
    """A call that is not the file port's or SQLite's is named."""
    assert found(tmp_path, line(call, str(tmp_path / "data" / name), rest)) == [rule]


def test_answer_without_sync(tmp_path: Path) -> None:
    """A confirm after a write that was not synced, after a sync without a write, or with the sync still running."""
    log = str(tmp_path / "data/messages/1.flog")
    assert found(tmp_path, line("pwrite64", log), ACK) == ["N3"]
    assert found(tmp_path, line("fdatasync", log), line("pwrite64", log), ACK) == ["N3"]
    cut = [f"8 fdatasync(5<{hexed(log)}> <unfinished ...>", ACK, "8 <... fdatasync resumed>) = 0"]
    assert found(tmp_path, line("pwrite64", log), *cut) == ["N3"]
    assert found(tmp_path, line("pwrite64", log), cut[0], cut[2], ACK) == []
    assert found(tmp_path, line("pwrite64", log), line("fdatasync", log, result="-1 EIO (Input/output error)"), ACK) == ["N3"]
