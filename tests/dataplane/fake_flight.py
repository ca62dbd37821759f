"""Stands in for the Flight service: says port 40000, calls `hello N` on every channel, ends when its first channel is closed."""

from __future__ import annotations

import argparse
import signal
import sys

from flintmq.dataplane.wire import Channel, ChannelClosed, Refused

parser = argparse.ArgumentParser()
parser.add_argument("--channels")
parser.add_argument("--port", type=int)
for flag in ("exit", "wrong-frame", "garbage", "silent", "stubborn", "drop-last-channel", "status"):
    parser.add_argument(f"--{flag}", action="store_true")
options = parser.parse_args()
if options.exit:
    sys.exit(69)
channels = [Channel.inherited(int(number)) for number in options.channels.split(",")]
if options.garbage:
    channels[0].socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    channels[0].receive()
if options.stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not options.silent:
    assert options.port in (0, 40_000), options.port
    channels[0].send({"call": "hello"} if options.wrong_frame else {"call": "ready", "port": 40_000})
    print("the fake is up", file=sys.stderr, flush=True)
    if not options.wrong_frame:
        for number, channel in enumerate(channels):
            try:
                channel.call({"call": "status" if options.status else f"hello {number}", "user": "guest"})
            except Refused as refused:
                print(refused, file=sys.stderr, flush=True)
if options.drop_last_channel:
    channels[-1].close()
try:
    channels[0].receive()
except ChannelClosed:
    while options.stubborn:
        signal.pause()
