"""Backups of the running broker: which files, how far, and that they stay until they are copied. For administrators.

in: calls of `flintmq backup`. out: facts of the logs. No file is read or written here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call, nothing
from flintmq.admin.http_refusals import HttpError, missing
from flintmq.admin.operations import Operation, rabbit
from flintmq.errors import StoreError

# seconds that a backup lives without a word of its maker
TTL_S = 120


def _backups(call: Call, backup: str = "") -> Any:
    """Args: backup: one that must be there. Raises: HttpError 400, or 404 for it, of a broker that makes none."""
    backups = call.app.parts.backups
    if backups is None and backup:
        raise missing("backup", backup)
    if backups is None:
        raise HttpError(400, "bad_request", "this broker keeps nothing on disk (--memory): there is nothing to back up")
    return backups()


async def begin(call: Call) -> Response:
    """It waits for the disk: in a thread."""
    backups = _backups(call)
    try:
        facts = await asyncio.to_thread(backups.begin, call.caller.user, TTL_S)
    except StoreError:
        raise
    except Exception as error:
        raise _refused(error) from None
    call.app.parts.broker.audit.changed(call.caller.user, f"backup {facts['id']} begins")
    config = call.broker.config
    return answer(facts | {"database": "file" if config.connect is None else "elsewhere", "catalog": config.catalog})


async def extend(call: Call) -> Response:
    try:
        _backups(call, call.name("backup")).extend(call.caller.user, call.name("backup"))
    except Exception as error:
        raise _refused(error, call.name("backup")) from None
    return nothing()


async def end(call: Call) -> Response:
    try:
        _backups(call, call.name("backup")).end(call.caller.user, call.name("backup"))
    except Exception as error:
        raise _refused(error, call.name("backup")) from None
    return nothing()


def _refused(error: Exception, backup: str = "") -> Exception:
    """The data plane's refusals in HTTP's words; what is none stays what it is."""
    code = getattr(error, "code", None)
    if not isinstance(code, str):
        return error
    if code == "NOT_FOUND":
        return missing("backup", backup)
    return HttpError(503, "busy", str(error))


def operations() -> list[Operation]:
    """The rows of this module."""
    return [
        rabbit("POST", "backups", "node.change", begin),
        rabbit("POST", "backups/{backup}", "node.change", extend),
        rabbit("DELETE", "backups/{backup}", "node.change", end),
    ]
