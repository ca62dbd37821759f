"""A stream's log as the stream core sees it (see source.pxd)."""

from __future__ import annotations

from cython import ccall, cclass


@cclass
class StreamSource:
    """Base of every source: fills in `source`, which StreamQueue copies when it takes the log over (`taken`)."""

    @ccall
    def taken(self) -> object:
        """The stream core has it now; source.release ends that."""
