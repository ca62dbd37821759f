"""A class of very many fields that do not change, cheap to define.

in: classes whose annotated attributes are the fields with their defaults. out: instances that keep what differs from the defaults.
A dataclass generates functions with a line for each field: for the 380 fields of `Limits` that took 15 ms of each start of a broker.
"""

from __future__ import annotations

from typing import Any, Self


class Frozen:
    """Base of such a class. Two instances are equal when they are the same object."""

    def __init__(self, **values: Any) -> None:
        """The defaults, but for the values given. Raises: TypeError, a name is no field's."""
        unknown = values.keys() - set(self.names())
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} does not change: make a copy with replace()")

    @classmethod
    def names(cls) -> list[str]:
        """The names of all fields, those of the bases first."""
        return [name for base in reversed(cls.__mro__) if issubclass(base, Frozen) for name in base.__annotations__]

    def replace(self, **values: Any) -> Self:
        """A copy with some values changed. Raises: TypeError, a name is no field's."""
        return type(self)(**self.__dict__ | values)
