"""Logins over AMQP and HTTP stand in one line, which those who left leave, and whose limits are answered."""

from __future__ import annotations

import http.client
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def held(start: Callable[..., Any]) -> Iterator[Any]:
    """`held(limits)`: a broker whose password checks wait until `broker.go` is set, but those that were made before."""
    made: list[Any] = []

    def make(**limits: int) -> Any:
        broker = start({"password_checks_max": 1, **limits}, http_port=0)
        users = broker.node.users
        check = users.check
        broker.go = threading.Event()
        broker.began = threading.Event()
        broker.checked = []

        def slow(user: str, password: str) -> bool:
            broker.began.set()
            broker.go.wait()
            broker.checked.append(user)
            return bool(check(user, password))

        users.check = slow
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.go.set()


def until(condition: Callable[[], bool]) -> None:
    """Waits for what is sure to come."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_client_that_leaves_takes_its_login_along(held: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = held()
    line = broker.node.users.checks
    flood = []
    for number in range(40):
        connection = connect(broker, handshake=False)
        connection.start()
        connection.start_ok("nobody", f"wrong{number}")
        flood.append(connection)
    polls = []
    for number in range(10):
        poll = http.client.HTTPConnection("127.0.0.1", broker.node.http_port, timeout=30)
        poll.request("GET", "/metrics", headers={"authorization": "Basic " + b64encode(f"nobody:http{number}".encode()).decode()})
        polls.append(poll)
    until(lambda: line.waiting == 49)
    for connection in flood:
        connection.drop()
    until(lambda: line.waiting <= 10)
    for poll in polls:
        poll.close()
    until(lambda: line.waiting == 0)
    honest = connect(broker, handshake=False)
    honest.start()
    honest.start_ok()
    until(lambda: line.waiting == 1)
    broker.go.set()
    honest.expect(0, "connection.tune")
    assert broker.checked == ["nobody", "guest"]


def test_logins_above_the_limit_are_told_so(held: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = held(password_waiting_max=1)
    waiting = [connect(broker, handshake=False) for _ in range(2)]
    for number, connection in enumerate(waiting):
        connection.start()
        connection.start_ok("nobody", f"wrong{number}")
        assert broker.began.wait(30)
    until(lambda: broker.node.users.checks.waiting == 1)
    late = connect(broker, handshake=False)
    late.start()
    late.start_ok("nobody", "late")
    late.expect_close(506, "RESOURCE_ERROR - too many logins wait")
    poll = http.client.HTTPConnection("127.0.0.1", broker.node.http_port, timeout=30)
    poll.request("GET", "/metrics", headers={"authorization": "Basic " + b64encode(b"nobody:http").decode()})
    answer = poll.getresponse()
    assert answer.status == 503 and answer.getheader("retry-after") and b"busy" in answer.read()
    poll.close()
    broker.go.set()
    for connection in waiting:
        connection.expect_close(403, "ACCESS_REFUSED")
