"""A sweep of a queue (purge.py) as an object that a job of a loop steps through.

in: a queue's handle. out: slices of a purge, or of the end of a deleted queue; how much went, and when the log has it.
"""

from __future__ import annotations

from cython import address, cclass, nogil
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.purge import sweep_begin, sweep_free, sweep_step
from cython.cimports.libc.stdint import uint64_t


@cclass
class Sweep:
    """A purge of a queue, or its end after it was deleted, in slices. Args: core: its QueueHandle; ending: see purge.pxd.

    Raises: MemoryError.
    """

    def __cinit__(self, core: QueueHandle, ending: bool = False):
        if not sweep_begin(address(self.sweep), core.queue, ending):
            raise MemoryError("no memory for a sweep of a queue")
        self.core = core

    def __dealloc__(self):
        sweep_free(address(self.sweep))

    def step(self, most: int) -> bool:
        """Looks at up to `most` places. True: it is done. Runs without the GIL."""
        places: uint64_t = most
        with nogil:
            sweep_step(address(self.sweep), places)
        return self.sweep.done

    @property
    def removed(self) -> int:
        """Messages that were available, and are gone."""
        return self.sweep.removed

    @property
    def lsn(self) -> int:
        """LSN up to which the log must be durable for the purge to be; 0: nothing of it was logged."""
        return self.sweep.lsn
