"""The client processes of a campaign: started once, given a role per life of the broker, asked to stop, waited for.

in: a folder for journals and how many clients. out: sessions in roles (tools.faults.client), the verdict over their journals.
Invariant: every process ends with its crew; `verdict` reads only what all clients have synced (they are idle then).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.faults import journal as j
from tools.faults.checker import Report, check
from tools.faults.client import Plan, declare

ROOT = Path(__file__).resolve().parents[2]
IDLE_S_MAX = 90.0


class Client:
    """One client process."""

    def __init__(self, journal: Path, module: str) -> None:
        self.journal = journal
        self.busy = ""
        self.ended = ""
        self.buffer = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(journal)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def tell(self, **command: Any) -> None:
        """Sends one command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def idle(self, seconds: float) -> bool:
        """Whether its session has ended within so long; why is in `ended`."""
        assert self.process.stdout is not None
        end = time.monotonic() + seconds
        while self.busy:
            if b"\n" in self.buffer:
                line, self.buffer = self.buffer.split(b"\n", 1)
                self.busy, self.ended = "", json.loads(line)["ended"]
                break
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return False
            part = os.read(self.process.stdout.fileno(), 65536)
            if not part:
                raise RuntimeError(f"the client of {self.journal.name} ended in the middle of {self.busy}")
            self.buffer += part
        return True


class Crew:
    """Client processes and the campaign's own journal."""

    MODULE = "tools.faults.client"

    def __init__(self, folder: Path, clients: int, plan: Plan) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.plan = folder, plan
        self.own = j.Journal(folder / "campaign.jsonl")
        self.clients = [Client(folder / f"client{number}.jsonl", self.MODULE) for number in range(clients)]

    def life(self, life: int, what: str) -> None:
        """Journals that a life of the broker began or ended."""
        self.own.add(j.LIFE, life, what)
        self.own.sync()

    def declare(self, port: int, life: int, *, known: bool, plan: Plan | None = None) -> None:
        """Declares (or looks for) the queues of the plan, or of this one. Raises: client.Gone."""
        declare(port, plan or self.plan, self.own, life, known=known)

    def begin(self, client: int, port: int, life: int, role: str, seed: int, plan: Plan | None = None) -> None:
        """Gives a client a session in a role; it must be idle."""
        who = self.clients[client]
        assert not who.busy, who.busy
        who.busy = f"{role}{life}c{client}n{time.monotonic_ns() % 10**9}"
        who.tell(port=port, name=who.busy, life=life, role=role, plan=(plan or self.plan).to_json(), seed=seed)

    def finish(self, seconds: float = IDLE_S_MAX) -> None:
        """Waits until all sessions ended by themselves (the broker is gone, or their work is done)."""
        for client in self.clients:
            if not client.idle(seconds):
                raise RuntimeError(f"{client.busy} did not end within {seconds} s")

    def halt(self, *numbers: int) -> None:
        """Asks sessions (all, or these) to close gracefully, and waits."""
        chosen = [self.clients[number] for number in numbers] or self.clients
        for client in chosen:
            if client.busy:
                client.tell(stop=True)
        for client in chosen:
            if not client.idle(IDLE_S_MAX):
                raise RuntimeError(f"{client.busy} did not stop within {IDLE_S_MAX} s")

    def drain(self, port: int, life: int) -> None:
        """Takes every queue to its end with one client that is alone."""
        self.begin(0, port, life, "drain", 0)
        if not self.clients[0].idle(600):
            raise RuntimeError("the drain did not end within 600 s")

    def events(self) -> list[j.Event]:
        """All records that the clients have synced so far, by stamp."""
        self.own.sync()
        return j.load(sorted(self.folder.glob("*.jsonl")))

    def verdict(self) -> Report:
        """The checker's report over all journals so far."""
        return check(self.events())

    def close(self) -> None:
        """Ends the processes. Idempotent."""
        for client in self.clients:
            assert client.process.stdin is not None and client.process.stdout is not None
            client.process.stdin.close()
            try:
                client.process.wait(10)
            except subprocess.TimeoutExpired:
                client.process.kill()
                client.process.wait()
            client.process.stdout.close()
        self.clients.clear()
        self.own.close()


@contextmanager
def crew(folder: Path, clients: int, plan: Plan, kind: type[Crew] = Crew) -> Iterator[Crew]:
    """A crew that is gone afterwards."""
    made = kind(folder, clients, plan)
    try:
        yield made
    finally:
        made.close()
