#!/usr/bin/env python3
"""Fuzzing of the AMQP 0-9-1 codec and receiving engine (needs atheris; `make fuzz`).

in: bytes from libFuzzer; arguments are libFuzzer's (`-max_total_time=60`, a corpus folder). out: a crash file in
build/fuzz and a traceback when a promise breaks, else exit code 0.

Promises: decoding raises PeerError and nothing else; what decodes, encodes again and decodes to the same; the engine reports the
same events however a stream is cut; the scan of
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
from tests.drivers.recorder import Recorder

SECONDS_DEFAULT = 60
SIZE_MAX = 4096
OPENED = b"AMQP\x00\x00\x09\x01" + codec.method_frame(0, spec.ConnectionOpen("/")) + codec.method_frame(1, spec.ChannelOpen())
PUBLISH = (
    codec.method_frame(1, spec.BasicPublish(exchange="x", routing_key="k"))
    + codec.encode_frame(spec.FRAME_HEADER, 1, codec.encode_properties(3, {}))
    + codec.encode_frame(spec.FRAME_BODY, 1, b"abc")
)


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


def check_stream(data: bytes) -> None:
    """Bytes of a connection after its first channel was opened: the same events, or the same refusal, whole and cut up."""
    whole, pieces = Recorder(), Recorder()
    whole.receive(OPENED + data)
    stream = OPENED + data
    for start in range(0, len(stream), 7):
        if not pieces.receive(stream[start : start + 7]):
            break
    assert pieces.events == whole.events, (pieces.events, whole.events)


def one_input(data: bytes) -> None:
    """The first byte picks what the rest is taken for."""
    kind, payload = data[:1], data[1:]
    if kind < b"\x40":
        check_method(payload)
    elif kind < b"\x80":
        check_stream(payload)
    elif kind < b"\xc0":
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
        *(b"\x40" + codec.method_frame(1, class_()) for class_ in spec.METHODS.values()),
        b"\x40" + PUBLISH,
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
        print("fuzz: skipped, atheris is not installed (pip install atheris)")
        return 0
    if not any(argument.startswith(("-max_total_time", "-runs")) for argument in arguments):
        arguments = [*arguments, f"-max_total_time={SECONDS_DEFAULT}"]

    # Outcomes are told apart by the branches of these functions: all the guidance there is without an instrumented build.
    global check_method, check_properties, check_table, check_stream
    checks = (check_method, check_properties, check_table, check_stream)
    check_method, check_properties, check_table, check_stream = map(atheris.instrument_func, checks)
    corpus = Path(__file__).resolve().parent.parent / "build" / "fuzz" / "corpus"
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
