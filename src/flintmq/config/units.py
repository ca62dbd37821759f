"""Units of limits."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

_STEPS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def amount(count: int) -> str:
    """A number of bytes for people: `300 bytes`, `1.5 KiB`, `14.2 GiB`."""
    value, step = float(count), 0
    while value >= KIB and step < len(_STEPS) - 1:
        value, step = value / KIB, step + 1
    return f"{value:.1f} {_STEPS[step]}" if step else f"{count} bytes"
