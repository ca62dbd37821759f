"""/api/v1, what an operator asks of the process: its settings, the level of its log, its end.

in: calls of administrators. out: options and limits without secrets; changes, which the audit names.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from starlette.responses import Response

from flintmq.admin.answers import answer
from flintmq.admin.api_call import Call
from flintmq.admin.http_refusals import HttpError
from flintmq.admin.operations import FLAG, PREFIX, Operation, one_of, record
from flintmq.config import Config, Limits

LEVELS = ("info", "debug", "warning", "error")
# a member of a URL's query, and words in the names of those that are secrets (libpq's password and sslpassword, keys of collectors)
_MEMBER = re.compile(r"([?&])([^?&=\s]{1,64})=[^&\s]*")
_SECRETS = ("pass", "secret", "token", "key", "auth")


def _member(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}=***" if any(word in match[2].lower() for word in _SECRETS) else match[0]


def shown_setting(value: Any) -> Any:
    """A value of JSON without passwords: logins of URLs, and secrets of their queries. O(length)."""
    if isinstance(value, tuple):
        return [shown_setting(one) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    # A password may have any character (--connect takes "a/b"): all up to the last @ is hidden, if too much.
    scheme, separator, rest = str(value).partition("://")
    if separator and "@" in rest:
        rest = f"***@{rest.rpartition('@')[2]}"
    return _MEMBER.sub(_member, f"{scheme}{separator}{rest}")


def settings_of(config: Config) -> dict[str, dict[str, Any]]:
    """Options by their keys in a configuration file, and limits. O(their number), some 500."""
    names = [name for name in Config.__slots__ if name not in ("limits", "inherited")]  # type: ignore[attr-defined]
    options = {name.replace("_", "-"): shown_setting(getattr(config, name)) for name in names}
    return {"options": options, "limits": {name: getattr(config.limits, name) for name in Limits.names()}}


async def settings(call: Call) -> Response:
    """GET settings"""
    return answer(settings_of(call.broker.config))


async def log_level(call: Call) -> Response:
    """PUT log-level"""
    level = (await call.json())["level"]
    logging.getLogger().setLevel(level.upper())
    call.broker.audit.changed(call.caller.user, f"the level of the log is {level}")
    return answer({"level": level})


async def stop(call: Call) -> Response:
    """POST stop: the answer leaves, and the process ends as by SIGTERM."""
    begin = call.app.parts.stop()
    if begin is None:
        raise HttpError(409, "not_a_process", "this broker is a part of another program", "stop that program")
    if not call.app.parts.is_stopping:  # a second SIGTERM would end the process at once
        call.app.parts.is_stopping = True
        call.broker.audit.changed(call.caller.user, "the broker is stopped")
        begin()
    return answer({"stopping": True}, 202)


def operations() -> list[Operation]:
    """The rows of this module."""
    stopping = record((), {"stopping": FLAG}, closed=False)
    level = record(("level",), {"level": one_of(*LEVELS)})
    return [
        Operation("GET", f"{PREFIX}/settings", "node.change", settings, "Options and limits that the broker runs with"),
        Operation(
            "PUT", f"{PREFIX}/log-level", "node.change", log_level, "The level of the log until the next start", {}, level, answer=level
        ),
        Operation("POST", f"{PREFIX}/stop", "node.change", stop, "Stops the broker, as SIGTERM does", status=202, answer=stopping),
    ]
