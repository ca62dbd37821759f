"""Structured fuzzing of the record batches of do_put: good ones, changed on their way, through the compiled encoder (`make asan`).

in: --seconds, --seed. out: exit code 0 when every batch became whole entries or an EncodeError; else the seed of the one that did not.

Batches of all types that are read, with dictionaries, views, slices and nulls, have bytes and numbers of their IPC stream changed behind
the schema: offsets, lengths, bitmaps, buffer sizes, row counts. Types that need no cast go through the compiled reader alone as well.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time

import pyarrow as pa

from flintmq.arrow.blocks import EncodeError, EncodeOptions, Encoder, blocks_of
from tests.arrow import hostile
from tests.support.blocks import block_entries


def attempt(seed: int) -> bool:
    """One batch. Returns whether it became blocks."""
    rng = random.Random(seed)
    plain = seed % 2 == 0
    stream = hostile.ipc_of(hostile.good_batch() if plain else hostile.any_batch(rng))
    try:
        batch = hostile.batch_of(hostile.mutated(rng, stream, rng.randrange(1, 8)))
    except (pa.ArrowException, OSError, EOFError, StopIteration, MemoryError):
        return False
    if plain and batch.num_rows < 1 << 20:
        with contextlib.suppress(EncodeError, UnicodeDecodeError):
            encoder = Encoder(batch, EncodeOptions(), 0)
            while encoder.block():
                pass
    options = EncodeOptions(exchange="x", routing_key="k", block_bytes=rng.choice((1, 1000, 4 << 20)))
    try:
        for routes, block in blocks_of(batch, options):
            assert all(entry.route < len(routes) for entry in block_entries(block, len(routes)))
    except EncodeError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first batch; each batch has the next one")
    options = parser.parse_args()
    until, seed, whole = time.monotonic() + options.seconds, options.seed, 0
    while time.monotonic() < until:
        try:
            whole += attempt(seed)
        except BaseException:
            print(f"seed {seed}:", file=sys.stderr, flush=True)
            raise
        seed += 1
    print(f"fuzz_arrow: {seed - options.seed} batches, {whole} became blocks", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
