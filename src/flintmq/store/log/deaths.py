"""Containers of a log and what died in them, written down while the log goes on (see deaths.pxd).

in: a log in use. out: counts of one moment; grains at which something died, of some later moment.

D1  What died stays dead: a copy in slices has all that had died when it began.
D2  A container that forgot what died in it has nothing that lives (log I5).
"""

from __future__ import annotations

from cython import NULL, address, bint, cfunc, declare, exceptval, nogil, pointer
from cython import int as c_int
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.store.log.log import container_t, log_begin, log_container, log_end, log_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memcpy

# words of a map that are copied under one hold of the lock
WORDS_AT_ONCE = declare(uint32_t, 4096)


def log_tally(log: pointer[log_t], out: pointer[tally_t], room: uint32_t, unsure: pointer[bint]) -> uint32_t:
    i: uint32_t
    count: uint32_t = 0
    container: pointer[container_t]
    unsure[0] = False
    for i in range(log.container_count):
        container = address(log.containers[i])
        if container.sequence > log.tail // log.container_size:
            break
        unsure[0] = unsure[0] or container.blurred or container.doubtful
        if count < room:
            out[count].sequence = container.sequence
            out[count].count = container.count
            out[count].bytes = container.bytes
        count += 1
    return count


@cfunc
@nogil
@exceptval(check=False)
def _slice(log: pointer[log_t], sequence: uint64_t, below: uint32_t, word: uint32_t, out: pointer[deaths_t]) -> c_int:
    """One hold of the lock: the list, or words of the map from `word` on."""
    container: pointer[container_t] = log_container(log, sequence) if sequence <= log.tail // log.container_size else NULL
    count: uint32_t = (below + 63) // 64
    i: uint32_t = 0
    if container == NULL:
        return DEATHS_GONE
    if container.blurred or container.doubtful:
        return DEATHS_UNSURE
    if container.live_count == 0:
        return DEATHS_ALL
    out.mapped = container.dead != NULL
    if out.mapped:
        memcpy(out.bits + word, container.dead + word, min(count - word, WORDS_AT_ONCE) * 8)
        return DEATHS_SOME
    check(container.death_count <= DEATHS_MAX, b"deaths D1 a longer list of deaths is a map", container.death_count, sequence)
    while i < container.death_count and container.deaths[i] < below:
        out.grains[i] = container.deaths[i]
        i += 1
    out.count = i
    return DEATHS_SOME


def log_copy_deaths(log: pointer[log_t], sequence: uint64_t, below: uint32_t, out: pointer[deaths_t]) -> c_int:
    words: uint32_t = (below + 63) // 64
    word: uint32_t = 0
    i: uint32_t
    outcome: c_int
    bits: uint64_t
    out.count = 0
    while True:
        log_begin(log)
        outcome = _slice(log, sequence, below, word, out)
        log_end(log)
        if outcome != DEATHS_SOME or not out.mapped:
            return outcome
        word += WORDS_AT_ONCE
        if word >= words:
            break
    if below & 63:
        bits = 1
        out.bits[words - 1] &= (bits << (below & 63)) - 1
    for i in range(words):
        bits = out.bits[i]
        while bits:
            bits &= bits - 1
            out.count += 1
    return DEATHS_SOME
