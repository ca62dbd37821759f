"""RabbitMQ on several nodes of its own on loopback, for benches: one epmd, one cookie, found by a list of names.

in: a count. out: AMQP ports. Rules S1 to S3 of servers.py hold here, too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support import servers

_JOINED_S = 90.0


@contextlib.contextmanager
def rabbitmq_cluster(count: int) -> Iterator[list[int]]:
    """Ports of the nodes, which are one cluster. Raises: Unavailable."""
    if reason := servers.rabbitmq_missing():
        raise servers.Unavailable(reason)
    script = servers._rabbitmq_script()
    assert script is not None
    base = Path(tempfile.mkdtemp(prefix="flintmq-rabbits-"))
    ports = servers.free_ports(2 * count + 1)
    amqp, dist, epmd_port = ports[:count], ports[count : 2 * count], ports[-1]
    names = [f"flintpeer{port}@localhost" for port in amqp]
    (base / "plugins").write_text("[].\n")
    nodes = "".join(f"cluster_formation.classic_config.nodes.{number + 1} = {name}\n" for number, name in enumerate(names))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
    environment |= {
        "HOME": str(base),
        "LANG": "C.UTF-8",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "plugins"),
        "RABBITMQ_CONF_ENV_FILE": str(base / "none"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        "RABBITMQ_ALLOW_INPUT": "true",
    }
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, base, ignore_errors=True)

        def start(command: list[str], more: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    command,
                    env=environment | more,
                    cwd=base,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            stack.callback(servers._process_group_stop, process, graceful_s=0.0)
            return process

        start([shutil.which("epmd") or "/usr/bin/epmd", "-port", str(epmd_port), "-address", "127.0.0.1"], {}, base / "epmd.log")
        for number, (name, port) in enumerate(zip(names, amqp, strict=True)):
            folder = base / str(number)
            folder.mkdir()
            (folder / "rabbitmq.conf").write_text(
                f"listeners.tcp.default = 127.0.0.1:{port}\nloopback_users = none\n"
                f"cluster_formation.peer_discovery_backend = classic_config\n{nodes}"
            )
            process = start(
                ["/bin/sh", str(script), "-noinput"],
                {
                    "RABBITMQ_NODENAME": name,
                    "RABBITMQ_NODE_PORT": str(port),
                    "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
                    "RABBITMQ_DIST_PORT": str(dist[number]),
                    "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
                    "RABBITMQ_LOG_BASE": str(folder / "log"),
                    "RABBITMQ_PID_FILE": str(folder / "pid"),
                    "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
                },
                folder / "out.log",
            )
            servers._wait_ready("RabbitMQ", port, process, folder / "out.log")
        _wait_joined(base, len(names))
        yield amqp


def _wait_joined(base: Path, count: int) -> None:
    """Until the last node's log names the others as up. Raises: RuntimeError."""
    until = time.monotonic() + _JOINED_S
    while True:
        text = "".join(path.read_text(errors="replace") for path in base.glob("*/log/*.log"))
        if text.count("rabbit on node") >= count - 1 or count == 1:
            return
        if time.monotonic() > until:
            raise RuntimeError(f"RabbitMQ's nodes did not find each other; a log ends with: {text[-500:]}")
        time.sleep(0.1)
