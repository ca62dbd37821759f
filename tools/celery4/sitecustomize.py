"""What Celery 4.4 misses in the Python of today: `inspect.formatargspec` and `getargspec`. For its own environment, of which this is the
sitecustomize; its text of an argument list is only shown to people."""

from __future__ import annotations

import inspect
from typing import Any


def _formatted(args: list[str], varargs: str | None = None, varkw: str | None = None, defaults: Any = None, *_: Any, **__: Any) -> str:
    defaults = defaults or ()
    first = len(args) - len(defaults)
    words = [name if at < first else f"{name}={defaults[at - first]!r}" for at, name in enumerate(args)]
    words += [f"*{varargs}"] if varargs else []
    words += [f"**{varkw}"] if varkw else []
    return f"({', '.join(words)})"


if not hasattr(inspect, "formatargspec"):
    inspect.getargspec = inspect.getfullargspec  # type: ignore[attr-defined]
    inspect.formatargspec = _formatted  # type: ignore[attr-defined]
