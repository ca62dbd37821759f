"""A collector for tests: takes OTLP/HTTP in JSON, answers as it is told."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

WAIT_S = 60


class Collector:
    """Args: answers: status codes of the first requests; 200 afterwards. `hold`: requests wait for `go`."""

    def __init__(self, answers: tuple[int, ...] = (), hold: bool = False) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self._answers = list(answers)
        self._changed = threading.Condition(threading.RLock())
        self.go = threading.Event()
        if not hold:
            self.go.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with collector._changed:
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    collector.requests.append((self.path, headers, json.loads(body)))
                    status = collector._answers.pop(0) if collector._answers else 200
                    collector._changed.notify_all()
                collector.go.wait(WAIT_S)
                self.send_response(status)
                self.send_header("content-length", "2")
                if status in (301, 307):
                    self.send_header("location", "/elsewhere")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> list[dict[str, Any]]:
        """All that came, in their order, attributes as a dict."""
        with self._changed:
            rows = [
                span
                for _, _, body in self.requests
                for resource in body["resourceSpans"]
                for scope in resource["scopeSpans"]
                for span in scope["spans"]
            ]
        return [row | {"attributes": {one["key"]: next(iter(one["value"].values())) for one in row["attributes"]}} for row in rows]

    def wait_requests(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= count, WAIT_S), len(self.requests)

    def wait_spans(self, count: int) -> list[dict[str, Any]]:
        """Waits until so many spans came."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.spans()) >= count, WAIT_S), self.spans()
        return self.spans()
