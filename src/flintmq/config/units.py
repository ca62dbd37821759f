"""Units of limits, and sizes as operators write them."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
# Prefix -> power of its base. RabbitMQ's units (rabbit_resource_monitor_misc): k, kB are 1,000, Ki, KiB 1,024, in any case of letters
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
# digits of a number: more are no size of anything
_DIGITS_MAX = 15
# bytes: what 64 bits with a sign hold
SIZE_MAX = 2**63 - 1


def size_of(text: str) -> int:
    """Bytes of a size: `1073741824`, `1GB` (10^9), `1GiB` or `1Gi` (2^30), `512k`. Raises: ValueError, with the forms that there are."""
    word = text.strip()
    number = word.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = word[len(number) :].strip().lower()
    base = 1024 if unit.endswith(("i", "ib")) else 1000
    prefix = unit.removesuffix("b").removesuffix("i")
    is_unit = prefix in _POWERS and unit in (prefix, f"{prefix}b", *((f"{prefix}i", f"{prefix}ib") if prefix else ()))
    if not (number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX and is_unit):
        raise ValueError(f"{text[:40]!r} is no size: a number of bytes, or one with a unit such as 512MB, 2GB, 1GiB")
    size: int = int(number) * base ** _POWERS[prefix]
    if size > SIZE_MAX:
        raise ValueError(f"{text[:40]!r} is more than 64 bits can count")
    return size


def share_of(text: str, most: float = 1.0) -> float | None:
    """The share that a text says: `60%`, `0.6`; None: it says none, and may be a size. Args: most: the largest share. Raises: ValueError:
    it says one that is not above 0 and at most `most`."""
    word = text.strip()
    is_percent = word.endswith("%")
    number = word.removesuffix("%").strip()
    if not number.replace(".", "", 1).isdecimal() or not number.isascii() or len(number) > _DIGITS_MAX or not (is_percent or "." in number):
        return None
    share = float(number) / (100 if is_percent else 1)
    if not 0 < share <= most:
        raise ValueError(f"{text[:40]!r} is no share above 0 and at most {most:.0%}")
    return share


# of `amount`
_STEPS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def amount(count: int) -> str:
    """A number of bytes for people: `300 bytes`, `1.5 KiB`, `14.2 GiB`."""
    value, step = float(count), 0
    while value >= KIB and step < len(_STEPS) - 1:
        value, step = value / KIB, step + 1
    return f"{value:.1f} {_STEPS[step]}" if step else f"{count} bytes"
