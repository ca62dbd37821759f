"""schemathesis on /api/v1 of a running broker: calls made from its OpenAPI document, each answer compared with it. `make api-test`.

in: this checkout, PyPI. out: schemathesis's exit code. It stands in a venv of its own (build/api-tool).
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "build" / "api-tool"
VERSION = "4.32.5"
# what it asks of an answer: no 500, a status and a body that the document has
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def tool() -> Path:
    program = TOOL / "bin" / "schemathesis"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(TOOL)], check=True)
        subprocess.run([str(TOOL / "bin/pip"), "install", "--quiet", f"schemathesis=={VERSION}"], check=True)
    return program


def prepare(api: str) -> None:
    """A virtual host whose name needs no encoding, with a queue and messages: most calls then get further than 404."""
    permission = {"configure": ".*", "write": ".*", "read": ".*"}
    message = {"properties": {}, "routing_key": "q", "payload": "{}", "payload_encoding": "string"}
    calls = [("PUT", "vhosts/v", {}), ("PUT", "permissions/v/guest", permission), ("PUT", "queues/v/q", {"durable": True})]
    for method, path, value in [*calls, *[("POST", "exchanges/v/amq.default/publish", message)] * 50]:
        headers = {"Authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{api}/{path}", json.dumps(value).encode(), headers, method=method)
        urllib.request.urlopen(request).close()


def main() -> int:
    program = tool()
    with tempfile.TemporaryDirectory() as folder:
        command = [ROOT / ".venv/bin/flintmq", "serve", "--port", "0", "--http-port", "0", "--flight-port", "off", "--data-dir", folder]
        broker = subprocess.Popen([*map(str, command), "--log-level", "error"], stdout=subprocess.PIPE, text=True)
        try:
            assert broker.stdout is not None
            root = f"http://127.0.0.1:{json.loads(broker.stdout.readline())['http_port']}"
            prepare(f"{root}/api")
            settings = Path(folder) / "schemathesis.toml"
            settings.write_text('[parameters]\n"path.vhost" = "v"\n"path.queue" = "q"\n"query.hold" = 0\n')
            # Streams of events end with their client alone.
            skip = ["--exclude-path", "/api/v1/events", "--exclude-path", "/api/v1/logs"]
            ask = [
                str(program),
                "--config-file",
                str(settings),
                "run",
                f"{root}/api/v1/openapi.json",
                "-u",
                root,
                "--auth",
                "guest:guest",
                "-c",
                CHECKS,
                *skip,
            ]
            return subprocess.run([*ask, *sys.argv[1:]]).returncode
        finally:
            broker.terminate()
            broker.wait(40)


if __name__ == "__main__":
    sys.exit(main())
