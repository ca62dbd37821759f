"""A broker's pull layer under a clock that the test moves and a scheduler that the test steps: no threads, no sleeps."""

from __future__ import annotations

from typing import Any

from flintmq.access.permissions import Permissions
from flintmq.access.users import Users
from flintmq.broker.broker import Broker
from flintmq.clock import ManualClock
from flintmq.config import Config
from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.pulls.pull_service import PullService
from flintmq.pulls.requests import Answers, Pull
from flintmq.scheduler.system import ActorSystem
from flintmq.store.definitions import MemoryDefinitions

SECOND_MS = 1_000


class Rig:
    """`pull` asks, `settle_down` runs the actors, `taken` collects answers. Ends with `close`."""

    def __init__(self, **limits: Any) -> None:
        config = Config(memory=True).with_limits(**limits)
        self.limits = config.limits
        self.clock = ManualClock()
        self.actors = ActorSystem(self.limits, clock=self.clock)
        definitions = MemoryDefinitions()
        users = Users(definitions, self.clock, self.limits)
        self.broker = Broker(config, self.clock, definitions, users, Permissions(definitions), "test")
        self.vhost = self.broker.add_vhost("/")
        self.pulls = PullService(self.broker, self.actors)
        self.answers = Answers()
        self.users = users

    def close(self) -> None:
        self.pulls.stop()
        self.actors.stop()
        self.answers.take()
        self.pulls.close()
        self.users.close()

    def queue(self, name: str = "q", **arguments: Any) -> Any:
        return self.vhost.run(self.vhost.declare_queue(name, arguments={key.replace("_", "-"): value for key, value in arguments.items()}))

    def publish(self, queue: Any, *bodies: bytes, priority: int = 0, expires_in_ms: int = 0) -> None:
        expires_at = 0 if not expires_in_ms else self.clock.wall_ms() + expires_in_ms
        for body in bodies:
            assert queue.core.publish(b"", queue.name.encode(), encode_properties(len(body), {}), body, 0, priority, expires_at)

    def pull(
        self,
        queue: Any,
        group: str = "",
        *,
        hold_s: float = 0,
        most: int = 1,
        bytes_max: int = 1 << 20,
        visibility_s: float = 30,
        **more: Any,
    ) -> Pull:
        pull: Pull = self.pulls.pull(
            queue,
            group,
            self.answers,
            None,
            most=most,
            bytes_max=bytes_max,
            visibility_ms=int(visibility_s * 1000),
            hold_ms=int(hold_s * 1000),
            **more,
        )
        return pull

    def settle_down(self) -> None:
        """Runs actors until none wants to, then what is due by the clock, until nothing is."""
        while True:
            while self.actors.step():
                pass
            if not self.actors.tick():
                return

    def advance(self, seconds: float) -> None:
        """Moves the time; runs what is due then, as housekeeping would."""
        self.clock.advance(ms=int(seconds * 1000))
        self.settle_down()
        self.pulls.tick(0)
        self.settle_down()

    def taken(self) -> list[Pull]:
        """Answers since the last call."""
        self.settle_down()
        return list(self.answers.take())

    def now(self, queue: Any, group: str = "", **options: Any) -> Pull:
        """A pull that is answered at once."""
        pull = self.pull(queue, group, **options)
        done = self.taken()
        assert done == [pull]
        return pull


def bodies(pull: Pull) -> list[bytes]:
    return [message[7] for message in pull.messages()]


def leases(rig: Rig, pull: Pull) -> list[str]:
    return [rig.pulls.lease_id(pull, message[0]) for message in pull.messages()]
