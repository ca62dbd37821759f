"""Blocks: messages go where a publish would take them; what can't go there is counted, dropped or sent elsewhere, as its stage says."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.dataplane.wire import Refused
from flintmq.protocol.v0_9_1.codec import decode_properties

from .rig import Rig, block, entry

numbers = itertools.count()


class Staged:
    """One stage and its commit."""

    def __init__(self, rig: Rig, **options: Any) -> None:
        self.rig = rig
        self.scope = f"x{next(numbers)}"
        self.epoch = rig.call("scope.open")["epoch"]
        self.stage_id = rig.call("stage.begin", scope=self.scope, epoch=self.epoch, batch=0, **options)["stage_id"]

    def block(self, payload: bytes, *routes: list[str]) -> Any:
        return self.rig.call("block", payload, stage_id=self.stage_id, routes=list(routes))

    def refused(self, payload: bytes, *routes: Any) -> str:
        return self.rig.code("block", payload, stage_id=self.stage_id, routes=list(routes))

    def publish(self) -> dict[str, Any]:
        facts = self.rig.call("stage.prepare", stage_id=self.stage_id)
        self.rig.call("stage.commit", scope=self.scope, epoch=self.epoch, batch=0, stage_ids=[self.stage_id])
        return dict(facts)

    def fails(self) -> str:
        with pytest.raises(Refused) as caught:
            self.rig.call("stage.prepare", stage_id=self.stage_id)
        assert caught.value.code == "STAGE_FAILED"
        self.rig.quiet()
        assert not self.rig.broker.transactions.list()  # type: ignore[union-attr]
        assert self.rig.code("stage.prepare", stage_id=self.stage_id) == "STAGE_FAILED"
        return caught.value.text


def exchange(rig: Rig, name: str, kind: str = "direct", **options: Any) -> Any:
    return rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].declare_exchange(name, kind, durable=True, **options))


def bind(rig: Rig, queue: str, source: str, key: str = "", **arguments: Any) -> None:
    rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].bind_queue(queue, source, key.encode(), arguments))


def header_of(rig: Rig, queue: str) -> dict[str, Any]:
    core = rig.core(queue)
    return dict(decode_properties(core.message_at(core.next_available(0))[2], 10, 100)[1])


# --- routes -----------------------------------------------------------------------------------------------------------------


def test_exchanges_of_every_kind_route_as_for_a_publish(rig: Rig) -> None:
    rig.declare("d", "f", "t", "alt")
    for kind in ("direct", "fanout", "topic"):
        exchange(rig, f"e.{kind}", kind)
    exchange(rig, "e.with", arguments={"alternate-exchange": "e.fanout"})
    bind(rig, "d", "e.direct", "k")
    bind(rig, "f", "e.fanout")
    bind(rig, "t", "e.topic", "a.*")
    staged = Staged(rig)
    routes = [["", "q"], ["e.direct", "k"], ["e.fanout", ""], ["e.topic", "a.b"], ["e.with", "nothing"]]
    staged.block(b"".join(entry(str(number), number) for number in range(5)), *routes)
    assert staged.publish()["count"] == 5
    assert [rig.bodies(name) for name in ("q", "d", "f", "t")] == [["0"], ["1"], ["2", "4"], ["3"]]
    core = rig.core("t")
    assert core.message_at(core.next_available(0))[:2] == (b"e.topic", b"a.b")


def test_headers_exchanges_look_at_each_message(rig: Rig) -> None:
    rig.declare("one", "two")
    exchange(rig, "h", "headers")
    bind(rig, "one", "h", n=1)
    bind(rig, "two", "h", n=2)
    staged = Staged(rig, unroutable="drop")
    entries = [entry(str(n), 0, {"headers": {"n": n}, "delivery_mode": 2}) for n in (1, 2, 1, 3)]
    staged.block(b"".join(entries), ["h", ""])
    assert staged.publish()["unroutable"] == 1
    assert (rig.bodies("one"), rig.bodies("two")) == (["1", "1"], ["2"])


def test_cc_and_bcc_add_routes_and_bcc_is_not_shown(rig: Rig) -> None:
    rig.declare("cc", "bcc")
    staged = Staged(rig)
    properties = {"headers": {"CC": ["cc"], "BCC": ["bcc", "q"], "x": 1}, "delivery_mode": 2}
    staged.block(entry("first") + entry("copies", 0, properties) + entry("last"), ["", "q"])
    assert staged.publish()["count"] == 3
    assert [rig.bodies(name) for name in ("q", "cc", "bcc")] == [["first", "copies", "last"], ["copies"], ["copies"]]
    assert header_of(rig, "bcc")["headers"] == {"CC": ["cc"], "x": 1}


def test_headers_that_nobody_asks_about_pass_untouched(rig: Rig) -> None:
    staged = Staged(rig)
    staged.block(entry("a", 0, {"headers": {"x": [1, {"y": b"z"}]}}), ["", "q"])
    staged.publish()
    assert header_of(rig, "q")["headers"] == {"x": [1, {"y": b"z"}]}


def test_time_to_live_of_message_and_queue_the_shorter_counts(rig: Rig) -> None:
    rig.declare("ttl", x_message_ttl=10_000)
    staged = Staged(rig)
    long, short = entry("long", properties={"expiration": "60000"}), entry("short", properties={"expiration": "1000"})
    staged.block(long + short, ["", "ttl"])
    staged.publish()
    core, now = rig.core("ttl"), rig.clock.wall_ms()
    assert [core.entry_facts(position)[2] - now for position in (1, 2)] == [10_000, 1_000]


# --- what can't go where it should ------------------------------------------------------------------------------------------


def test_unroutable_messages_fail_the_stage_with_counts(rig: Rig) -> None:
    staged = Staged(rig)
    staged.block(block("a", "b") + block("lost", "lost", "lost", route=1), ["", "q"], ["", "nowhere"])
    assert "3 messages are unroutable" in (text := staged.fails()) and "'nowhere'" in text
    assert rig.bodies("q") == []


def test_unroutable_messages_are_dropped_and_counted_when_that_is_said(rig: Rig) -> None:
    staged = Staged(rig, unroutable="drop")
    staged.block(block("a") + block("lost", route=1), ["", "q"], ["", "nowhere"])
    facts = staged.publish()
    assert (facts["count"], facts["unroutable"]) == (2, 1) and rig.bodies("q") == ["a"]


@pytest.mark.parametrize("option", ["exchange:dead", "dead"])
def test_unroutable_messages_go_to_an_exchange_with_the_names_they_were_meant_for(rig: Rig, option: str) -> None:
    rig.declare("morgue")
    exchange(rig, "dead", "fanout")
    exchange(rig, "h", "headers")
    bind(rig, "morgue", "dead")
    staged = Staged(rig, unroutable=option)
    staged.block(block("a") + block("lost", route=1) + entry("strange", 2), ["", "q"], ["", "nowhere"], ["h", ""])
    assert staged.publish()["unroutable"] == 2
    assert (rig.bodies("q"), rig.bodies("morgue")) == (["a"], ["lost", "strange"])
    core = rig.core("morgue")
    assert core.message_at(core.next_available(0))[:2] == (b"", b"nowhere")


def test_an_exchange_for_unroutable_messages_that_leads_nowhere_fails_the_stage(rig: Rig) -> None:
    exchange(rig, "dead", "fanout")
    staged = Staged(rig, unroutable="exchange:dead")
    staged.block(block("lost"), ["", "nowhere"])
    staged.fails()


def test_queues_that_refuse_more_fail_the_stage(rig: Rig) -> None:
    rig.declare("full", x_max_length=2, x_overflow="reject-publish")
    rig.put("full", "there")
    staged = Staged(rig)
    staged.block(block("a", "b", "c"), ["", "full"])
    assert "2 are over the limit" in (text := staged.fails()) and "'full'" in text
    assert rig.bodies("full") == ["there"]


def test_messages_over_a_limit_go_to_an_exchange_and_other_queues_get_theirs(rig: Rig) -> None:
    rig.declare("full", x_max_length_bytes=4, x_overflow="reject-publish")
    rig.declare("morgue", "other")
    exchange(rig, "both", "fanout")
    exchange(rig, "over", "fanout")
    bind(rig, "full", "both")
    bind(rig, "other", "both")
    bind(rig, "morgue", "over")
    staged = Staged(rig, over_limit="exchange:over")
    staged.block(block("abc", "de", "f"), ["both", ""])
    facts = staged.publish()
    assert (facts["over_limit"], facts["unroutable"]) == (1, 0)
    assert [rig.bodies(name) for name in ("full", "other", "morgue")] == [["abc", "f"], ["abc", "de", "f"], ["de"]]


def test_drop_head_queues_take_all_and_drop_their_heads(rig: Rig) -> None:
    rig.declare("short", x_max_length=2)
    staged = Staged(rig)
    staged.block(block("a", "b", "c"), ["", "short"])
    staged.publish()
    assert rig.bodies("short") == ["b", "c"]


@pytest.mark.parametrize(("name", "value"), [("unroutable", "exchange:"), ("over_limit", "drop"), ("unroutable", 7), ("over_limit", "")])
def test_options_that_there_are_not_are_refused(rig: Rig, name: str, value: object) -> None:
    assert rig.code("stage.begin", scope="x", epoch=rig.call("scope.open")["epoch"], batch=0, **{name: value}) == "BAD_ARGUMENT"


# --- refusals ---------------------------------------------------------------------------------------------------------------


def test_topic_permissions_hold_for_stages_too(rig: Rig) -> None:
    """The routing key of each message is asked for, of a topic exchange, as over AMQP: also where the unroutable go."""
    exchange(rig, "t", "topic")
    exchange(rig, "free", "topic")
    exchange(rig, "d")
    for name in ("t", "free"):
        bind(rig, "q", name, "#")
    rig.user_with("eve", write=".*")
    rig.node.permissions.set_topic("eve", "/", "t", "^mine[.]", ".*")
    rig.node.permissions.set_topic("eve", "/", "d", "^mine[.]", ".*")
    rig.broker.vhosts["/"].set_keyed(["t", "d"])
    rig.user = "eve"
    staged = Staged(rig, unroutable="exchange:t")
    staged.block(block("a", "b"), ["t", "mine.x"])
    staged.block(block("c"), ["free", "other"])
    staged.block(block("d"), ["d", "mine.y"])
    assert staged.refused(block("e"), ["t", "mine.x"], ["t", "other"]) == "FORBIDDEN"
    staged.fails()
    elsewhere = Staged(rig, unroutable="exchange:t")
    assert elsewhere.refused(block("f"), ["d", "other"]) == "FORBIDDEN", "it would reach `t` with a key that is not hers"
    assert Staged(rig, unroutable="drop").block(block("g"), ["d", "other"])["count"] == 1, "a direct exchange has no topics"
    for name in ("CC", "BCC"):
        copied = Staged(rig)
        assert copied.block(entry("i", 0, {"headers": {name: ["mine.2"]}}), ["t", "mine.x"])["count"] == 1
        assert copied.refused(entry("j", 0, {"headers": {name: ["other"]}}), ["t", "mine.x"]) == "FORBIDDEN"
    assert elsewhere_copied(rig) == "FORBIDDEN"
    rig.user = "guest"
    assert Staged(rig).block(block("h"), ["t", "other"])["count"] == 1
    assert rig.bodies("q") == []


def elsewhere_copied(rig: Rig) -> str:
    """An unroutable message whose CC would reach `t`."""
    return Staged(rig, unroutable="exchange:t").refused(entry("k", 0, {"headers": {"CC": ["other"]}}), ["d", "mine.z"])


def test_a_refused_block_fails_its_stage(rig: Rig) -> None:
    exchange(rig, "inner", internal=True)
    for routes, code in (([["none", "q"]], "NOT_FOUND"), ([["inner", "q"]], "FORBIDDEN")):
        staged = Staged(rig)
        staged.block(block("a"), ["", "q"])
        assert staged.refused(block("b"), *routes) == code
        staged.fails()
    assert rig.bodies("q") == []


def test_writing_needs_permission_for_each_exchange(rig: Rig) -> None:
    exchange(rig, "yes", "fanout")
    exchange(rig, "no", "fanout")
    bind(rig, "q", "yes")
    bind(rig, "q", "no")
    rig.user_with("eve", write="^yes$")
    rig.user = "eve"
    staged = Staged(rig, unroutable="drop")
    staged.block(block("a"), ["yes", ""])
    assert staged.refused(block("b"), ["no", ""]) == "FORBIDDEN"
    assert Staged(rig).refused(block("b"), ["", "q"]) == "FORBIDDEN"
    for option in ("unroutable", "over_limit"):
        arguments = {"scope": "other", "epoch": rig.call("scope.open")["epoch"], "batch": 0, option: "exchange:no"}
        assert rig.code("stage.begin", **arguments) == "FORBIDDEN"


def test_properties_that_lie_are_refused(rig: Rig) -> None:
    for properties in ({"user_id": "eve"}, {"reply_to": "amq.rabbitmq.reply-to"}, {"headers": {"CC": "no list"}}):
        assert Staged(rig).refused(entry("a", 0, properties), ["", "q"]) == "BAD_ARGUMENT"
    staged = Staged(rig)
    staged.block(entry("a", 0, {"user_id": "guest", "reply_to": "somewhere"}), ["", "q"])
    staged.publish()
    assert header_of(rig, "q") == {"user_id": "guest", "reply_to": "somewhere"}


def test_properties_that_fit_no_frame_are_refused(rig: Rig) -> None:
    """What no AMQP client could be given is not staged; what just fits is."""
    over = len(entry("", 0, {"headers": {"x": ""}})) - 24  # of the header, with its padding
    for size, code in ((131_072 - 8 - over, ""), (131_072, "BAD_ARGUMENT")):
        assert Staged(rig).refused(entry("a", 0, {"headers": {"x": "x" * size}}), ["", "q"]) == code


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (12, 0),  # the content is persistent
        (12, 1 | 32),  # a flag that is the broker's own
        (12, 1 | 4),  # headers, and there are none
        (13, 9),  # a priority that the header does not have
        (16, 7),  # an expiration that the header does not have
        (24 + 13, 3),  # flags of properties that AMQP does not know
        (24 + 12, 0x30),  # a property that is not there
        (24 + 14, 0x80),
    ],
)
def test_what_an_entry_says_of_its_header_is_checked(rig: Rig, at: int, value: int) -> None:
    """The Flight service reads batches of clients: what it says is compared with the header's bytes, which the broker scans itself."""
    good = entry("a", properties={"delivery_mode": 2, "message_id": "i"})
    wrong = bytearray(good)
    wrong[at] = value
    assert Staged(rig).refused(bytes(wrong), ["", "q"]) == ("BAD_ARGUMENT" if bytes(wrong) != good else "")
    assert Staged(rig).refused(good, ["", "q"]) == ""


@pytest.mark.parametrize("routes", ["q", [["q"]], [["", 7]], [["x" * 256, ""]], [["", "q"], "q"], [["\ud800\ud800", ""]]])
def test_routes_are_checked(rig: Rig, routes: Any) -> None:
    assert rig.code("block", block("a"), stage_id=Staged(rig).stage_id, routes=routes) in ("BAD_ARGUMENT", "NOT_FOUND")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_damaged_blocks_are_refused_whole_or_staged_whole(rig: Rig, data: st.DataObject) -> None:
    raw = bytearray(block("one", "two") + entry("h", 1, {"headers": {"CC": ["q"], "n": 1}}))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    staged = Staged(rig, unroutable="drop")
    core = rig.core("q")
    before = core.ready_count()
    if staged.refused(bytes(raw), ["", "q"], ["", "q"]):
        staged.fails()
        assert core.ready_count() == before
    else:
        facts = staged.publish()
        assert core.ready_count() - before <= facts["count"] <= 3
    rig.call("scope.forget", scope=staged.scope)
