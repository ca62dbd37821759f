"""What message groups and selectors learn of entries that are not in memory (see cold_headers.pxd).

in: contents that the cold reader has read anyway, or reads behind a full window. out: entries whose group is known, positions in heaps of
selections, consumers woken.

I1  Something is learned of an entry only while it is the next one that its groups, or a selection, have to look at: nothing in front of it
    is passed over.
I2  Whoever is parked on the first entry of a run is woken by its content (residency I2), after all that was learned behind it.

Without this each entry behind a full window took a place in it, and a way to the reader and back: some 2 ms each.
"""

from __future__ import annotations

from cython import NULL, address, bint, pointer, void
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load_ptr, at_sub32
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.queue.entry_list import list_scan
from cython.cimports.flintmq.queue.grouped import grouped_learned
from cython.cimports.flintmq.queue.message_groups import groups_note
from cython.cimports.flintmq.queue.selections import selections_note
from cython.cimports.flintmq.queue.types import found_t, place_t, queue_t
from cython.cimports.libc.stdint import uint64_t


def queue_wants_headers(queue: pointer[queue_t]) -> bint:
    if queue.message_groups != NULL:
        return at_load32(address(queue.message_groups.unread)) != 0
    if at_load_ptr(address(queue.manager.selections)) == NULL:
        return False
    return at_load32(address(queue.manager.selections.waiting)) != 0


def queue_header_read(queue: pointer[queue_t], before: uint64_t, position: uint64_t, content: pointer[content_t]) -> bint:
    entry: found_t
    place: place_t
    known: bint
    place.segment = NULL
    place.generation = 0
    at_add32(address(queue.pins), 1)
    if queue.message_groups != NULL:
        known = groups_note(queue, address(place), position, content)
    else:
        if before and not (list_scan(address(queue.entries), address(place), before + 1, address(entry)) and entry.position == position):
            before = 0  # something became available between the two, which nobody has looked at
        known = selections_note(queue, before, position, content)
    at_sub32(address(queue.pins), 1)
    return known


def queue_headers_read(queue: pointer[queue_t]) -> void:
    if queue.message_groups != NULL:
        grouped_learned(queue)
