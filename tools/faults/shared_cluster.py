"""An engine (shared_engines.py) and three brokers, each on a machine of its own (shared_net.py).

in: a folder. out: processes that are killed, stopped, cut off and started again.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from flintmq.shared.layout import Owner, owner_key
from flintmq.shared.queue_rows import QueueRow, queue_key
from tools.faults.clock_shim import ClockShim
from tools.faults.shared_engines import ENGINES
from tools.faults.shared_net import Machine
from tools.faults.shared_process import Process

# the campaign's queue
QUEUE = "campaign"
AMQP_PORT = 5672
START_S_MAX = 120.0
_READY = b'"ready": true'


class Cluster:
    """Args: folder: for data and logs; engine: a name of ENGINES. Raises: servers.Unavailable: there is none."""

    def __init__(self, folder: Path, engine: str = "etcd") -> None:
        self.folder = folder
        self.engine = ENGINES[engine](folder)
        self.members = self.engine.members
        broker_machines = [Machine(number) for number in (11, 12, 13)]
        self.machines = [*(member.machine for member in self.members), *broker_machines]
        self.brokers = []
        for machine in broker_machines:
            data = folder / f"data{machine.number}"
            command = [sys.executable, "-m", "flintmq.cli.main", "serve", "--data-dir", str(data), "--port", str(AMQP_PORT)]
            command += ["--http-port", "off", "--flight-port", "off", "--cluster", self.engine.url]
            command += ["--node-name", f"broker{machine.number}"]
            command += ["--host", "0.0.0.0", "--advertise-host", machine.address]
            clock = ClockShim(folder / f"clock{machine.number}")
            self.brokers.append(Process(f"broker{machine.number}", machine, command, folder, clock))

    def wait_ready(self, brokers: Sequence[Process] = ()) -> None:
        """Until each broker (all without `brokers`) answers. Raises: TimeoutError."""
        until = time.monotonic() + START_S_MAX
        for broker in brokers or self.brokers:
            while not broker.said(_READY):
                if time.monotonic() > until or not broker.runs:
                    raise TimeoutError(f"{broker.name} is not ready: {broker.log.read_text()[-500:]}")
                time.sleep(0.05)

    def owner(self) -> Process | None:
        """The broker that owns the campaign's queue. None: nobody, or no member answers."""
        row = self.engine.row(queue_key("/", QUEUE))
        value = None if row is None else self.engine.row(owner_key(QueueRow.unpack(row).id))
        name = None if value is None else Owner.unpack(value).node
        return next((broker for broker in self.brokers if broker.name == name), None)

    def close(self) -> None:
        for process in (*self.brokers, *self.members):
            process.kill()
        for machine in self.machines:
            machine.close()
        for disk in self.engine.disks:
            disk.close()

    def keep_logs(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for process in (*self.brokers, *self.members):
            if process.log.exists():
                shutil.copy(process.log, folder)
