"""A stream's log as the stream core sees it (see source.pxd)."""

from __future__ import annotations

import cython


@cython.cclass
class StreamSource:
    """Base of every source: fills in `source`, which StreamQueue copies when it takes the log over (`taken`)."""

    @cython.ccall
    def taken(self):
        """The stream core has it now; source.release ends that."""
