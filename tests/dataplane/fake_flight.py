"""Stands in for the Flight service: says the port of its listener, else its option or 40000, calls `hello N` on every channel, ends when
its first channel is closed. Each connection to the listener gets the number of this process, and is closed."""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import sys
import threading

from flintmq.dataplane.wire import Channel, ChannelClosed, Refused

parser = argparse.ArgumentParser()
parser.add_argument("--channels")
parser.add_argument("--port", type=int)
parser.add_argument("--listener", type=int)
FLAGS = ("exit", "wrong-frame", "garbage", "silent", "stubborn", "drop-last-channel", "status", "not-adopted", "shut-down", "elsewhere")
for flag in FLAGS:
    parser.add_argument(f"--{flag}", action="store_true")
options = parser.parse_args()
listener = None if options.listener is None else socket.socket(fileno=options.listener)
port = 1 if options.elsewhere else listener.getsockname()[1] if listener is not None else options.port or 40_000


def answer_connections() -> None:
    """The socket does not block, and stays so: it is the supervisor's, too."""
    ready = select.poll()
    ready.register(listener, select.POLLIN)
    while ready.poll():
        try:
            connection, _ = listener.accept()
        except OSError:
            continue
        with connection:
            connection.sendall(b"%d\n" % os.getpid())


if options.not_adopted and listener is not None:
    sys.exit(76)
if options.shut_down:  # as gRPC does with a server that it can't start
    listener.shutdown(socket.SHUT_RDWR)
if options.exit or options.shut_down:
    sys.exit(69)
channels = [Channel.inherited(int(number)) for number in options.channels.split(",")]
if options.garbage:
    channels[0].socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    channels[0].receive()
if options.stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not options.silent:
    channels[0].send({"call": "hello"} if options.wrong_frame else {"call": "ready", "port": port})
    if listener is not None:
        threading.Thread(target=answer_connections, daemon=True).start()
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
