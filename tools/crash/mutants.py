"""Mutation run: one durability guard is taken out of the store at a time, and T1, T6, T7 or the unit tests must notice.

`python -m tools.crash.mutants [--only NAME]... [--out TABLE.md]`. Works in a scratch copy of the tree; compiles what a mutant changed.
A mutant whose text is no longer in the sources is an error: the list below has to follow the code.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
STORE = "src/flintmq/store/"


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replaces `old` by `new` (first occurrence behind `after`) in `file`; where two guards do the same, both go: `also`, whose name does
    not count. A file is named as from the store's folder."""

    name: str
    file: str
    old: str
    new: str
    after: str = ""
    also: Mutant | None = None

    def edits(self) -> list[Mutant]:
        """This change and those that belong to it."""
        return [self, *(self.also.edits() if self.also else ())]


MUTANTS = (
    Mutant("no fdatasync of the group", "log/writer.py", "if batch.log.syncs:", "if False:"),
    Mutant(
        "transaction log does not wait for the message log's next container",
        "log/writer.py",
        "            starved = not batch.complete\n",
        "            starved = False\n",
    ),
    Mutant(
        "a failed sync is no failure",
        "log/writer.py",
        "                    if error:\n",
        "                    if False:\n",
        after="self.writer.syncs += 1",
    ),
    Mutant("a failed write is no failure", "log/writer.py", "                if error:\n", "                if False:\n"),
    Mutant(
        "failure not latched",
        "log/writer.py",
        "            at_store32(address(self.writer.logs[i].failed), cast(uint32_t, error))",
        "            pass",
        also=Mutant("", "log_store.py", "                    managed.latch(5)\n", "                    pass\n"),
    ),
    Mutant(
        "written on after a failure",
        "log/writer.py",
        "            if at_load32(address(self.writer.logs[i].failed)):\n",
        "            if False:\n",
    ),
    Mutant(
        "transaction log may run ahead",
        "log/writer.py",
        "        for i in range(count):\n            batch = address(self.writer.batches[i])\n            if starved:",
        "        for i in range(count):\n            batch = address(self.writer.batches[count - 1 - i])\n            if starved:",
    ),
    Mutant(
        "durable before it is written",
        "log/log.py",
        "            upto[0] = buffer.used\n",
        "            upto[0] = buffer.used\n            at_store64(address(log.durable), buffer.used)\n",
    ),
    Mutant(
        "no sync of a new container's header", "log/managed.py", "        files.sync(fd)\n", "        pass\n", after="def make_container"
    ),
    Mutant(
        "no sync of a recycled container's header",
        "log/managed.py",
        "        files.sync(fd)\n",
        "        pass\n",
        after="def recycle_container",
    ),
    Mutant(
        "recycled in place, without a temporary name",
        "log/managed.py",
        'temporary = f"{directory}/{header.sequence:020d}{TEMPORARY}"',
        'temporary = f"{directory}/{container_name(header.sequence)}"',
        after="def recycle_container",
    ),
    Mutant(
        "no sync of the directory after making containers",
        "log/managed.py",
        "            self.files.sync_dir(self.directory)\n",
        "            pass\n",
        after="        if made:",
    ),
    Mutant("base moves before ends are durable", "log/managed.py", "or self.log.containers[i].ended_at > durable", "or False"),
    Mutant(
        "recycled before the base on disk passed",
        "log/managed.py",
        "gone = at_load64(address(self.log.base_durable))",
        "gone = at_load64(address(self.log.base))",
    ),
    Mutant(
        "a shape of another container is named",
        "log/log.py",
        "        log.shape_floor = log.tail\n    buffer.start",
        "    buffer.start",
    ),
    Mutant(
        "distances are those to a shape of another container",
        "log/shapes.py",
        "    shape.position = position\n    return True",
        "    shape.position = shape.position or position\n    return True",
    ),
    Mutant("base moves over live messages", "log/managed.py", "or self.log.containers[i].live_count", "or False"),
    Mutant("no CRC of block headers", "log/record.pxd", " or crc32c(0, p, 60) != le32(p + 60)", ""),
    Mutant("no LSN in block headers", "log/record.pxd", " or le64(p + 8) != lsn", ""),
    Mutant("no CRC of records", "log/record.pxd", "if check and record_crc(p, out.length, lsn) != le32(p + 4):", "if False:"),
    Mutant("record CRC without its LSN", "log/record.pxd", "    start[0] = lsn\n", "    start[0] = 0\n"),
    Mutant(
        "next container's first block need not name the last one",
        "log/scan.py",
        " and out.epoch >= epoch and out.previous == last:",
        " and out.epoch >= epoch:",
    ),
    Mutant("epochs may fall", "log/scan.py", "and out.epoch >= epoch and (any_previous", "and (any_previous"),
    Mutant("damage taken for a torn tail", "log/scan.py", "if lsn >= self.hint:", "if True:"),
    Mutant(
        "no CRC of container headers",
        "log/containers.py",
        ' or crc32c_of(data[:508]) != int.from_bytes(data[508:HEADER_SIZE], "little"):',
        ":",
    ),
    Mutant("tail not written anew", "log/managed.py", "    repair_tail(files,", "    (lambda *a, **k: None)(files,"),
    Mutant(
        "tail written anew, not synced",
        "log/managed.py",
        "        files.sync(fd)\n",
        "        pass\n",
        after="def _write_anew",
    ),
    Mutant(
        "no directory sync after the tail was written anew",
        "log/managed.py",
        "    files.sync_dir(directory)\n",
        "    pass\n",
        after="            _write_anew(",
    ),
    Mutant(
        "commit told before it is durable",
        "logs.py",
        "if message_lsn > messages or transaction_lsn > transactions:",
        "if message_lsn > messages:",
    ),
    Mutant(
        "message told before it is durable",
        "logs.py",
        "if message_lsn > messages or transaction_lsn > transactions:",
        "if transaction_lsn > transactions:",
    ),
    Mutant("transaction forgotten while messages name it", "transaction_log.py", "or transaction.references > 0 ", ""),
    Mutant(
        "effects of a commit before it is durable",
        "enrolment.py",
        "heapq.heappush(self.logs.waiting, (ticket, -1, lambda: self._settle()))",
        "self._settle()",
    ),
    Mutant(
        "open transactions commit at a restart",
        "decisions.py",
        "_UNDONE = frozenset({Enqueue.ROLLED_BACK, Enqueue.OPEN})",
        "_UNDONE = frozenset({Enqueue.ROLLED_BACK})",
    ),
    Mutant(
        "checkpoint before the log that it rests on",
        "log_store.py",
        "        self.writer.add(self.messages.log)\n",
        "        self.writer.add(self.index.log.log)\n        self.writer.add(self.messages.log)\n",
        also=Mutant(
            "",
            "log_store.py",
            "        self.writer.add(self.index.log.log)\n",
            "",
            after="            self.writer.add(self.pages.log)\n",
        ),
    ),
    Mutant(
        "checkpoint with runs without their acks",
        "standing.py",
        "            if _stands(ml, queue_id, entries + i):\n",
        "            if True:\n",
    ),
    Mutant(
        "checkpoint with stale places of copied messages",
        "past.py",
        "    map64_get(address(past.moved), message_id, address(lsn))\n",
        "    pass\n",
    ),
    Mutant(
        "checkpoint that ignores a purge",
        "recovery_past.py",
        "        for j in range(info.purges, info.purges + info.purge_count):\n",
        "        for j in range(0):\n",
    ),
    Mutant(
        "checkpoint with the container of its begin counted twice",
        "checkpoints.py",
        "(size if work.tallies[i].sequence < work.begin // size else work.begin % size)",
        "size",
    ),
    Mutant(
        "checkpoint begun while a purge is counted out",
        "checkpoints.py",
        "        if at_load64(address(work.pager.burials)):\n",
        "        if False:\n",
    ),
    Mutant(
        "a mark of deliveries covers before it is durable",
        "../queue/delivered.py",
        " and queue.port.durable_lsn(queue.port.context) >= level.reserved_at",
        "",
    ),
    Mutant("the base passes the marks of deliveries", "maintenance.py", "            self.store.write_delivered(target)\n", ""),
    Mutant(
        "a mark of deliveries that a start found counts as a fresh record",
        "log_store.py",
        "            queue.marked_at = max(self.messages.log.base, cast(uint64_t, 1))\n",
        "            queue.marked_at = self.messages.log.tail\n",
    ),
    Mutant(
        "the mark of a clean stop stays while messages are delivered",
        "log_store.py",
        "        if not reopened and not self.was_clean:\n",
        "        if not reopened:\n",
    ),
    Mutant(
        "checkpoint with what was granted for the marks of deliveries",
        "checkpoints.py",
        "address(queue.entries.levels[level].reserved))",
        "address(queue.entries.levels[level].granted))",
    ),
    Mutant(
        "index log gives back what ended since the checkpoint began",
        "checkpoints.py",
        "        self.index.log.set_keep(self.written_keep)\n",
        "        self.index.log.set_keep(self.index.index.log.tail)\n",
        after="        self.kept = self.written_keep\n",
    ),
    Mutant(
        "index log gives back what the first checkpoint names",
        "checkpoints.py",
        "            self.index.log.set_keep(self.written_keep)\n",
        "            pass\n",
    ),
    Mutant(
        "index log gives back what the checkpoint of the start names",
        "log_store.py",
        "            index.set_keep(index.tail)\n",
        "            pass\n",
    ),
    Mutant("a copy lets go of transactions that are open in it", "message_copy.py", "        if open_:\n", "        if False:\n"),
    Mutant(
        "checkpoint with deaths copied first",
        "checkpoints.py",
        "        for handle in handles:\n            if not self._queue(handle):\n",
        "        with nogil:\n            done = _write_containers(address(self.work))\n"
        "        for handle in handles:\n            if not self._queue(handle):\n",
        also=Mutant(
            "",
            "checkpoints.py",
            "            done = _write_containers(address(self.work))\n            for i in",
            "            for i in",
        ),
    ),
)

CAMPAIGNS = (
    ("T7", ["-m", "tools.crash.fail_calls", "--scripts", "2", "--seconds", "30"]),
    ("T6", ["-m", "tools.crash.corrupt", "--images", "3000", "--seconds", "30"]),
    ("T1", ["-m", "tools.crash.enumerate", "--images", "20000", "--jobs", "2", "--seconds", "60"]),
    ("T1 features", ["-m", "tools.crash.features", "--images", "3000", "--jobs", "2"]),
    (
        "unit tests",
        [
            "-m",
            "pytest",
            "-q",
            "-x",
            "-rf",
            "--timeout",
            "60",
            "-p",
            "no:cacheprovider",
            "tests/store/test_scan.py",
            "tests/store/test_opening.py",
            "tests/store/test_checkpoint_start.py",
            "tests/store/test_delivered.py",
            "tests/store/test_copy_forward.py",
            # It tries to see a thread at work: on a busy machine it may fail without a mutant.
            "--deselect=tests/store/test_checkpoint_start.py::test_a_long_message_that_is_being_written",
        ],
    ),
)


def mutate(scratch: Path, mutant: Mutant) -> dict[Path, str]:
    """Changes the files; returns their old texts. Raises ValueError when a place is not there."""
    texts: dict[Path, str] = {}
    for edit in mutant.edits():
        path = (scratch / STORE / edit.file).resolve()
        text = path.read_text()
        texts.setdefault(path, text)
        start = text.find(edit.after) if edit.after else 0
        at = text.find(edit.old, start) if start >= 0 else -1
        if at < 0:
            for changed, before in texts.items():
                changed.write_text(before)
            raise ValueError(f"{mutant.name}: {edit.file} has no {edit.old.strip()!r}")
        path.write_text(text[:at] + edit.new + text[at + len(edit.old) :])
    return texts


def compile_changed(scratch: Path, mutant: Mutant) -> None:
    """Compiles what the change touches; a .pxd touches all of the store."""
    files = [(scratch / STORE / edit.file).resolve() for edit in mutant.edits()]
    if any(one.suffix == ".pxd" for one in files):
        files = [one.with_suffix(".py") for one in (scratch / STORE).rglob("*.pxd") if one.stem != "__init__"]
    sources = [one for one in files if one.exists() and one.with_suffix(".pxd").exists()]
    if not sources:
        return
    names = [".".join(one.relative_to(scratch / "src").with_suffix("").parts) for one in sources]
    for one in sources:
        os.utime(one)
    environment = {**os.environ, "FLINTMQ_ONLY": ",".join(names), "FLINTMQ_BUILD_DIR": "build/cython"}
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=scratch,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"{mutant.name}: does not compile: {done.stderr[-400:]}")


def campaigns(scratch: Path) -> tuple[str, str]:
    """(campaign that noticed, its first finding); ("", "") when none did."""
    environment = {**os.environ, "PYTHONPATH": f"{scratch / 'src'}{os.pathsep}{scratch}"}
    for name, command in CAMPAIGNS:
        done = subprocess.run(
            [sys.executable, *command], cwd=scratch, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode:
            lines = [line.strip() for line in done.stderr.splitlines() if line.startswith("  ")] or done.stderr.strip().splitlines()[-1:]
            lines = lines or [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
            return name, lines[0][:160] if lines else "ended by a signal"
    return "", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="part of a mutant's name; may be given more than once")
    parser.add_argument("--out", help="file for the table")
    parser.add_argument("--list", action="store_true", help="only check that every mutant's place is there")
    arguments = parser.parse_args()
    wanted = [mutant for mutant in MUTANTS if any(part in mutant.name for part in arguments.only or [""])]
    rows = ["| mutant | caught by | first finding | s |", "|---|---|---|---|"]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="flintmq-mutants-") as folder:
        scratch = Path(folder).resolve()
        for name in ("src", "tools", "tests"):
            shutil.copytree(ROOT / name, scratch / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("setup.py", "pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, scratch / name)
        (scratch / "build").mkdir()
        if not arguments.list:
            print("unchanged:", campaigns(scratch) or "passes", flush=True)
        for mutant in wanted:
            started = time.monotonic()
            texts: dict[Path, str] = {}
            try:
                texts = mutate(scratch, mutant)
                if arguments.list:
                    continue
                compile_changed(scratch, mutant)
                caught, finding = campaigns(scratch)
            except ValueError as error:
                caught, finding = "", str(error)
                print(error)
            finally:
                for path, text in texts.items():
                    path.write_text(text)
            if not arguments.list:
                restore(scratch, mutant)
            missed += not caught
            rows.append(f"| {mutant.name} | {caught or 'NOT CAUGHT'} | {finding.replace('|', '/')} | {time.monotonic() - started:.0f} |")
            print(rows[-1], flush=True)
    if arguments.out:
        Path(arguments.out).write_text("\n".join(rows) + "\n")
    print(f"{len(wanted) - missed} of {len(wanted)} {'are there' if arguments.list else 'caught'}")
    return 1 if missed else 0


def restore(scratch: Path, mutant: Mutant) -> None:
    """Puts the unchanged compiled modules back."""
    for module in (ROOT / "src").rglob("*.so"):
        target = scratch / module.relative_to(ROOT)
        if target.stat().st_mtime_ns != module.stat().st_mtime_ns:
            target.unlink()
            shutil.copy2(module, target)


if __name__ == "__main__":
    sys.exit(main())
