"""`make newcomer`: does what the pages for users say, command by command, as somebody would who opened them today.

in: pages (default: PAGES), the `flintmq` of this checkout or of --bin. out: a line for each block; exit code 1 with the block, what it
printed and the broker's log when one fails.

    python -m tools.newcomer [--bin DIRECTORY] [PAGE...]

C1  Each page starts in an empty directory with no broker. Its blocks of `sh` and `python` run in their order; what one exports, the next
    one has. Python blocks of a page continue each other.
C2  `flintmq serve` runs on while the page goes on: a command is done when the ready line is there. A second one for the same port takes
    the first one's place, as a restart does.
C3  A block that can't run here says so in the page, in a comment on the line before: `<!-- run: no, REASON -->`. Nothing is left out
    without a reason, so a new block is run unless somebody decides otherwise.
C4  A page whose first Python block makes no connection shows parts of programs: they find a broker, a `channel` and a callback `work`.
C5  Ports are free ones of loopback in place of the usual ones, in every text: others may run a broker here.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    *(
        "README.md",
        "docs/INSTALL.md",
        "docs/FROM_RABBITMQ.md",
        "docs/OPERATIONS.md",
        "docs/MONITORING.md",
        "docs/LOGGING.md",
        "docs/TLS.md",
    ),
    *("docs/SIZING.md", "docs/UPGRADE.md", "docs/HTTP.md", "docs/ACCESS.md", "docs/QUEUES.md", "docs/STREAMS.md", "docs/SCHEDULED.md"),
    *("docs/SHARED.md", "docs/SHOVEL.md", "docs/FEDERATION.md", "docs/CONSOLE.md"),
)
# ports that pages name; 5673 and 15673: of a second broker
PORTS = ("5671", "5672", "5673", "15672", "15673", "15692")
# seconds for a block; for a start
BLOCK_S, START_S = 120, 30
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_NOT = re.compile(r"<!-- run: no, (.+?) -->\s*$")
# what the shell of a page has: `flintmq serve` in the background, installed things are installed
_PRELUDE = r"""
set -euo pipefail
pip() { case "$*" in install*flintmq*) ;; *) command pip "$@" ;; esac; }
flintmq() {
    if [ "${1:-}" != serve ]; then command flintmq "$@"; return; fi
    shift
    python3 "$NEWCOMER" --serve "$NEWCOMER_STATE" "$@"
}
"""


# what a part of a program finds (C4)
_PART = """
import pika

channel = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2F")).channel()
"""
_WORK = "work = lambda *delivery: None\n"


class Block(NamedTuple):
    """A fenced block. Args: line: of the page, from 1; skipped: why it is not run, "" when it is."""

    page: str
    line: int
    language: str
    text: str
    skipped: str


def blocks(page: str) -> Iterator[Block]:
    """The `sh` and `python` blocks of a page. Args: page: relative to the checkout."""
    text = (ROOT / page).read_text()
    for found in _FENCE.finditer(text):
        if found["language"] in ("sh", "python"):
            before = text[: found.start()].rstrip(" ")
            reason = _NOT.search(before.removesuffix("\n"))
            body = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
            yield Block(page, before.count("\n") + 1, found["language"], body, "" if reason is None else reason[1])


def follow(page: str, programs: Path) -> list[str]:
    """Runs the blocks of a page; a line for each. Raises: SystemExit: one failed."""
    lines = []
    ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        state = Path(folder, "state")
        here = Path(folder, "here")
        state.mkdir()
        here.mkdir()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FLINTMQ"))}
        environment |= {
            "PATH": f"{programs}{os.pathsep}{environment.get('PATH', '')}",
            "HOME": folder,
            "NEWCOMER": str(Path(__file__).resolve()),
            "NEWCOMER_STATE": str(state),
            "NEWCOMER_PORTS": f"{ports['5672']} {ports['15672']}",
            "FLINTMQ_URI": f"http://127.0.0.1:{ports['15672']}",
        }
        python = ""
        try:
            for block in blocks(page):
                title = f"{page}:{block.line} {block.language}"
                if block.skipped:
                    lines.append(f"{title}: not run: {block.skipped}")
                    continue
                text = block.text
                if block.language == "python":
                    if not python and "import pika" not in text:
                        _run(title, "flintmq serve --data-dir for-parts", here, state, environment)
                        python = _PART
                    python += _WORK + text
                    text = python
                text = re.sub(r"(?<!\d)(" + "|".join(PORTS) + r")(?!\d)", lambda found: str(ports[found[1]]), text)
                if block.language == "python":
                    text = f"python3 - <<'END_OF_BLOCK'\n{text}\nEND_OF_BLOCK\n"
                _run(title, text, here, state, environment)
                lines.append(f"{title}: {len(block.text.splitlines())} lines, done")
        finally:
            _stop_all(state)
    return lines


def _run(title: str, text: str, here: Path, state: Path, environment: dict[str, str]) -> None:
    """One block, with what the ones before exported (C1)."""
    kept = state / "environment"
    load = f"source {shlex.quote(str(kept))}\n" if kept.exists() else ""
    script = f"{_PRELUDE}{load}{text}\nexport -p > {shlex.quote(str(kept))}\n"
    output = state / "output"
    with output.open("wb") as file:
        try:
            code = subprocess.run(["bash", "-c", script], cwd=here, env=environment, stdout=file, stderr=file, timeout=BLOCK_S).returncode
        except subprocess.TimeoutExpired:
            code = -1
    if code:
        logs = "".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(state.glob("*.log")))
        raise SystemExit(f"{title} failed ({code}):\n{text}\n--- it printed\n{output.read_text(errors='replace')[-4000:]}\n{logs}")


def serve(state: Path, arguments: list[str]) -> int:
    """`flintmq serve` of a page (C2)."""
    amqp, http = os.environ["NEWCOMER_PORTS"].split()
    given = " ".join(arguments)
    config = re.search(r"--config (\S+)", given)
    given += "" if config is None else Path(config[1]).read_text().replace(" = ", " ")
    port = re.search(r"(?<!\w)port (\d+)", given.replace("http-port", "").replace("tls-port", ""))
    name = amqp if port is None else port[1]
    _stop(state / f"{name}.pid")
    arguments += [] if port else ["--port", amqp]
    arguments += [] if "http-port" in given else ["--http-port", http]
    arguments += [] if "tls-port" in given else ["--tls-port", "0"]
    arguments += [] if "flight-port" in given else ["--flight-port", "0"]
    ready = state / f"{name}.ready"
    with ready.open("wb") as out, (state / f"{name}.log").open("ab") as log:
        broker = subprocess.Popen(["flintmq", "serve", *arguments], stdout=out, stderr=log, start_new_session=True)
    (state / f"{name}.pid").write_text(str(broker.pid))
    for _ in range(START_S * 20):
        if ready.read_bytes().endswith(b"\n"):
            return 0
        try:
            return broker.wait(0.05) or 1
        except subprocess.TimeoutExpired:
            continue
    return 1


def _stop(file: Path) -> None:
    """Ends the broker whose process id is in a file, and waits for it."""
    if not file.exists():
        return
    pid = int(file.read_text())
    file.unlink()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select
    import signal

    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    if not select.select([descriptor], [], [], START_S)[0]:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    os.close(descriptor)


def _stop_all(state: Path) -> None:
    for file in state.glob("*.pid"):
        _stop(file)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def main() -> int:
    """See module."""
    if sys.argv[1:2] == ["--serve"]:
        return serve(Path(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", default=PAGES)
    parser.add_argument("--bin", type=Path, default=Path(sys.executable).parent, help="where flintmq and python3 are")
    options = parser.parse_args()
    for page in options.pages:
        for line in follow(page, options.bin.absolute()):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
