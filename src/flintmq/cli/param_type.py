"""click's ParamType with the type of its values, which click itself can name from 8.4 on; the broker runs with 8.1 and later.

in: nothing. out: the base of types of options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click import ParamType
else:

    class ParamType(click.ParamType):
        """As click's: `class Port(ParamType[int])`."""

        def __class_getitem__(cls, _kind: object) -> type[click.ParamType]:
            return cls


__all__ = ["ParamType"]
