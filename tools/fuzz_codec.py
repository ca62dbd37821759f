#!/usr/bin/env python3
"""Coverage-guided fuzzing of the AMQP 0-9-1 codec (needs atheris; part of `make fuzz`).

in: bytes from libFuzzer; arguments are libFuzzer's (`-max_total_time=60`, a corpus folder). out: a crash file in
build/fuzz and a traceback when a promise breaks, else exit code 0.

Promises: decoding raises PeerError and nothing else; what decodes, encodes again and decodes to the same; the scan of
properties accepts exactly what the decoder accepts. The compiled code is opaque to Python coverage: build it with
FLINTMQ_CFLAGS="-fsanitize=fuzzer-no-link,address" (clang) to guide by it and to see overruns; without, atheris
mutates the seeds below and learns only which branch of the checks an input takes.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from flintmq.errors import PeerError
from flintmq.protocol.v0_9_1 import codec, spec

SECONDS_DEFAULT = 60
SIZE_MAX = 4096


def check_method(payload: bytes) -> None:
    """A method payload: PeerError, or a method that survives a round trip."""
    try:
        method = codec.decode_method(payload)
    except PeerError:
        return
    again = codec.decode_method(codec.encode_method(method))
    assert repr(again) == repr(method), (method, again)  # repr, because NaN differs from itself


def check_properties(payload: bytes) -> None:
    """A content header payload: decoder and scan agree on whether and what."""
    scanned = codec.scan_properties_of(payload)
    try:
        body_size, properties = codec.decode_properties(payload)
    except PeerError:
        assert scanned is None, scanned
        return
    assert scanned is not None
    assert scanned["body_size"] == body_size
    headers = properties.get("headers")
    assert scanned["has_cc"] == (isinstance(headers, dict) and ("CC" in headers or "BCC" in headers))
    assert repr(codec.decode_properties(codec.encode_properties(body_size, properties))) == repr((body_size, properties))


def check_table(data: bytes) -> None:
    """A table, alone and as the headers of a message."""
    try:
        table = codec.decode_table(data)
    except PeerError:
        pass
    else:
        assert repr(codec.decode_table(codec.encode_table(table))) == repr(table)
    check_properties(struct.pack(">HHQHI", spec.CLASS_BASIC, 0, 0, 0x2000, len(data)) + data)


def one_input(data: bytes) -> None:
    """The first byte picks what the rest is taken for."""
    kind, payload = data[:1], data[1:]
    if kind < b"\x56":
        check_method(payload)
    elif kind < b"\xab":
        check_properties(payload)
    else:
        check_table(payload)


def seeds() -> list[bytes]:
    """One input per method and field type, to start from."""
    table: dict[str, object] = {
        "CC": ["q"],
        "n": -1,
        "t": True,
        "v": None,
        "x": b"\xff",
        "f": 1.5,
        "T": codec.Timestamp(1),
        "k": {"l": [[2**40]]},
    }
    every: dict[str, object] = {name: {"shortstr": "60", "table": table}.get(wire, 2) for name, wire, _ in spec.BASIC_PROPERTIES}
    return [
        *(b"\x00" + codec.encode_method(class_()) for class_ in spec.METHODS.values()),
        b"\x00" + codec.encode_method(spec.QueueDeclare("q", durable=True, arguments=table)),
        b"\x80" + codec.encode_properties(5, every),
        b"\xff" + codec.encode_table(table),
        b"\xff" + b"".join(b"\x01k" + kind + bytes(8) for kind in (b"b", b"u", b"i", b"L", b"D")),
    ]


def main(arguments: list[str]) -> int:
    for seed in seeds():
        one_input(seed)
    try:
        import atheris
    except ImportError:
        print("fuzz_codec: skipped, atheris is not installed (pip install atheris)")
        return 0
    if not any(argument.startswith(("-max_total_time", "-runs")) for argument in arguments):
        arguments = [*arguments, f"-max_total_time={SECONDS_DEFAULT}"]

    # Outcomes are told apart by the branches of these functions: all the guidance there is without an instrumented build.
    global check_method, check_properties, check_table
    check_method, check_properties, check_table = map(atheris.instrument_func, (check_method, check_properties, check_table))
    corpus = Path(__file__).resolve().parent.parent / "build" / "fuzz" / "codec"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number:03}").write_bytes(seed)
    # keep_seed, len_control: compiled code shows no coverage, so seeds would be dropped and inputs stay short.
    options = [f"-max_len={SIZE_MAX}", "-keep_seed=1", "-len_control=0", f"-artifact_prefix={corpus.parent}/"]
    atheris.Setup([sys.argv[0], str(corpus), *options, *arguments], one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
