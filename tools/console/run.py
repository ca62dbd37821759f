"""The console in headless Chromium, against a broker with real load: `make console-test`.

in: this checkout, Debian's chromium, npm. out: exit code 0 when all of tools/console/check.mjs holds, after some 7 minutes. Chromium is
installed where this runs as root on Debian; elsewhere its absence ends with 69 and what to install. ARGS: --screenshots also writes the
pictures of docs/img.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pika
import pika.exceptions

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "console"
# pictures of docs/CONSOLE.md: one of each page, and what the page has besides
SHOWN = (
    *("overview", "search", "route", "consumers", "topology", "dark", "login", "diagnosis", "queues", "queue", "streams", "exchanges"),
    *("exchange", "schedules", "shovels", "federation", "connections", "channels", "pipelines", "transactions", "admin", "log", "api"),
)
WIDTHS = (1366, 390)
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"`${alert(1)}\u202e'


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"], check=False, env=quiet
        )
        found = shutil.which("chromium")
    if found is None:
        sys.exit("The console's test needs Chromium: apt-get install chromium. (exit 69)")
    return found


def modules() -> Path:
    """axe-core and playwright-core, by the lock file."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(Path(__file__).with_name(name), FOLDER / name)
    if not (FOLDER / "node_modules" / "playwright-core").exists():
        subprocess.run(["npm", "ci", "--silent", "--ignore-scripts"], cwd=FOLDER, check=True)
    return FOLDER / "node_modules"


def prepare(url: str) -> None:
    """Queues, bindings, users' policies and messages, hostile ones among them."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.exchange_declare("orders", "topic", durable=True, arguments={"alternate-exchange": "lost"})
    channel.exchange_declare("lost", "fanout", durable=True)
    channel.exchange_declare("audit", "headers", durable=True)
    for name in ("orders.eu", "orders.us", "billing", "lost.letters", "emails", "backlog"):
        channel.queue_declare(name, durable=True)
    channel.queue_declare("clicks", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare(HOSTILE[:120], durable=True)
    channel.queue_bind("orders.eu", "orders", "eu.#")
    channel.queue_bind("orders.us", "orders", "us.#")
    channel.queue_bind("billing", "orders", "*.order.paid")
    channel.queue_bind("lost.letters", "lost")
    channel.exchange_bind("audit", "orders", "#")
    channel.queue_bind("emails", "audit", "", {"x-match": "any", "mail": True, "urgent": 1})
    for number in range(400):
        region = ("eu", "us", "asia")[number % 3]
        body = {
            "order": number,
            "region": region,
            "total": round(number * 1.7, 2),
            "lines": [{"sku": f"A{number % 7}", "count": 1 + number % 4}],
        }
        headers = {"tenant": f"t{number % 5}", "mail": number % 4 == 0}
        properties = pika.BasicProperties(content_type="application/json", delivery_mode=2, headers=headers, message_id=f"m{number}")
        channel.basic_publish("orders", f"{region}.order.{'paid' if number % 2 else 'new'}", json.dumps(body), properties)
    for name in ("backlog", HOSTILE[:120]):
        properties = pika.BasicProperties(headers={HOSTILE[:60]: HOSTILE, "bytes": b"\xff\x00"}, type=HOSTILE[:80], delivery_mode=2)
        for body in (HOSTILE, json.dumps({HOSTILE: [HOSTILE]}), b"\xff\xfe\x00", "x" * 20_000, ""):
            channel.basic_publish("", name, body, properties)
    for key in ("emails", "billing", HOSTILE[:60]):
        channel.basic_publish("", key, "later", pika.BasicProperties(headers={"x-delay": 3_600_000}, delivery_mode=2))
    for number in range(2000):
        channel.basic_publish("", "clicks", f'{{"click": {number}}}')
    for number in range(55):  # lists have a second page
        channel.queue_declare(f"zz.filler.{number:02}")
    long = "n" * 200
    channel.queue_declare(long, durable=True)
    channel.exchange_declare(long, "direct", durable=True)
    channel.queue_bind(long, long, long)
    channel.basic_publish(long, long, long, pika.BasicProperties(headers={long[:120]: long}))
    connection.close()


def closing(url: str) -> dict[int, pika.BlockingConnection]:
    """Connections that the console closes, by the width at which it does."""
    made = {}
    for width in WIDTHS:
        parameters = pika.URLParameters(url)
        parameters.heartbeat = 0
        parameters.client_properties = {"connection_name": f"closing-{width}-{'c' * 150}"}
        made[width] = pika.BlockingConnection(parameters)
        made[width].channel()
    return made


def were_told(connections: dict[int, pika.BlockingConnection]) -> bool:
    """Whether each was closed, and told the reason that somebody typed."""
    told = True
    for width, connection in connections.items():
        try:
            connection.process_data_events(1)
            reason = "nothing"
            connection.close()
        except pika.exceptions.ConnectionClosedByBroker as error:
            reason = error.reply_text
        if f"reason-{width}" not in reason:
            print(f"FAIL  the client at {width} px was told: {reason}")
            told = False
    return told


def load(url: str, stop: threading.Event) -> None:
    """Traffic while the pages are looked at: one queue grows, one is served by two consumers of which one hoards."""
    publisher = pika.BlockingConnection(pika.URLParameters(url))
    out = publisher.channel()
    out.basic_qos(prefetch_count=200)
    greedy, modest = publisher.channel(), publisher.channel()
    greedy.basic_qos(prefetch_count=500)
    modest.basic_qos(prefetch_count=5)
    greedy.basic_consume("emails", lambda *_: None, consumer_tag="greedy-worker")
    publisher.process_data_events(0.5)
    modest.basic_consume("emails", lambda *_: None, consumer_tag="modest-worker")
    stream = publisher.channel()
    stream.basic_qos(prefetch_count=50)
    done = lambda channel, method, *_: channel.basic_ack(method.delivery_tag)  # noqa: E731
    stream.basic_consume("clicks", done, arguments={"x-group": "analytics", "x-stream-offset": "first"}, consumer_tag="analytics-1")
    served = publisher.channel()
    served.basic_consume("billing", done, consumer_tag="billing-1")
    number = 0
    while not stop.is_set():
        for _ in range(12):
            number += 1
            properties = pika.BasicProperties(delivery_mode=2, headers={"n": number}, content_type="application/json")
            out.basic_publish(
                "orders", f"eu.order.{'paid' if number % 2 else 'new'}", json.dumps({"order": number, "region": "eu"}), properties
            )
        publisher.process_data_events(0)
        stop.wait(0.1)
    publisher.close()


def main() -> int:
    browser, node_modules = chromium(), modules()
    with tempfile.TemporaryDirectory() as folder:
        command = [ROOT / ".venv/bin/flintmq", "serve", "--port", "0", "--http-port", "0", "--flight-port", "off", "--data-dir", folder]
        broker = subprocess.Popen([*map(str, command), "--log-level", "info"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        stop = threading.Event()
        try:
            assert broker.stdout is not None
            ready = json.loads(broker.stdout.readline())
            url = f"amqp://guest:guest@127.0.0.1:{ready['amqp_port']}/%2F"
            prepare(url)
            thread = threading.Thread(target=load, args=(url, stop), daemon=True)
            thread.start()
            clients = closing(url)
            time.sleep(1)
            env = {
                **os.environ,
                "CHROMIUM": browser,
                "CONSOLE": f"http://127.0.0.1:{ready['http_port']}",
                "HOSTILE": HOSTILE,
                "NODE_PATH": str(node_modules),
                "MODULES": str(node_modules),
                "WIDTHS": ",".join(map(str, WIDTHS)),
                "BIN": str(ROOT / ".venv/bin"),
                "SHOTS": str(FOLDER / "shots"),
            }
            status = subprocess.run(["node", str(Path(__file__).with_name("check.mjs"))], env=env).returncode
            status = status or int(not were_told(clients))
            for name in SHOWN if "--screenshots" in sys.argv else ():
                shutil.copy(FOLDER / "shots" / f"console-{name}.png", ROOT / "docs/img")
            return status
        finally:
            stop.set()
            broker.terminate()
            broker.wait(40)


if __name__ == "__main__":
    sys.exit(main())
