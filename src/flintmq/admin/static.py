"""The console's files: what there is, and the headers that keep a page of it from running, loading or showing anything else.

in: paths below /console. out: files of the package, read once. They are public: they have no data of the broker in them.

F1  Nothing but the files that were found at the first request is served: a path is a key of a table, never a path of the file system.
F2  No script or style of a page itself runs (no inline script or style, no eval), no other site is asked, none frames it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

from starlette.responses import Response

from flintmq.admin.api_call import Call
from flintmq.admin.http_refusals import HttpError
from flintmq.admin.operations import Access, Operation

FOLDER = Path(__file__).with_name("console")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
# bytes that are sent at a time
_PIECE = 32 * 1024
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


class File(NamedTuple):
    content: bytes
    media: str
    tag: str


def read(folder: Path = FOLDER) -> dict[str, File]:
    """All files by their path below the folder."""
    files = {}
    for path in sorted(folder.rglob("*")):
        media = _TYPES.get(path.suffix)
        if media is not None and path.is_file():
            content = path.read_bytes()
            files[path.relative_to(folder).as_posix()] = File(content, media, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return files


class Slow(Response):
    """Content that is sent at the pace of its reader: what a stranger does not read is not copied for it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        content = memoryview(self.body)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(content), _PIECE):
            await send({"type": "http.response.body", "body": bytes(content[start : start + _PIECE]), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


_files: dict[str, File] = {}


async def home(call: Call) -> Response:
    """GET /, /console"""
    return Response(b"", 302, {**HEADERS, "location": "/console/"})


async def show(call: Call) -> Response:
    """GET /console/{path}"""
    if not _files:
        _files.update(read())
    file = _files.get(call.request.path_params["path"] or "index.html")
    if file is None:
        raise HttpError(404, "not_found", "there is no such file", "open /console/")
    headers = {**HEADERS, "etag": file.tag}
    if call.request.headers.get("if-none-match") == file.tag:
        return Response(b"", 304, headers)
    return Slow(file.content, 200, headers, file.media)


def operations() -> list[Operation]:
    """The rows of the console."""
    paths = (("/", home), ("/console", home), ("/console/{path:path}", show))
    return [Operation(method, path, Access.ANYBODY, handler, query=None) for path, handler in paths for method in ("GET", "HEAD")]
