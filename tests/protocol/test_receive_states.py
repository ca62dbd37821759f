"""The receiving engine does what tools/specs/receive_states.toml says, with a frame of every kind, in every phase and state."""

from __future__ import annotations

from itertools import product

import pytest

from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import encode_frame, encode_properties, method_frame
from tests.drivers.recorder import Recorder
from tools import gen_states

SPEC = gen_states.receiving()
ABOUT = {"none": 0, "publish": spec.BasicPublish.ID}
METHODS = {
    "PUBLISH": [spec.BasicPublish(routing_key="k")],
    "BASIC": [spec.BasicGet(queue="q"), spec.BasicAck(1), spec.BasicNack(1), spec.BasicReject(1)],
    "CHANNEL_OPEN": [spec.ChannelOpen()],
    "CHANNEL_CLOSE": [spec.ChannelClose(200, "", 0, 0)],
    "CHANNEL_CLOSE_OK": [spec.ChannelCloseOk()],
    "CONNECTION_END": [spec.ConnectionClose(200, "", 0, 0), spec.ConnectionCloseOk()],
    "CONNECTION": [spec.ConnectionOpen("/"), spec.ConnectionTuneOk(0, 0, 0)],
    "METHOD": [spec.QueueDeclare(queue="q"), spec.ChannelFlow(True), spec.TxCommit(), spec.ConfirmSelect()],
}
# what the recorder calls a frame that it got
SEEN = {"PUBLISH": "publish", "HEADER": "header", "BODY": "body", "HEARTBEAT": "heartbeat"}


def frames(event: str, channel: int) -> list[tuple[bytes, int]]:
    """(frame, method or 0) of every kind of frame that the event stands for."""
    if event == "HEADER":
        return [(encode_frame(spec.FRAME_HEADER, channel, encode_properties(3, {})), 0)]
    if event == "BODY":
        return [(encode_frame(spec.FRAME_BODY, channel, b"abc"), 0)]
    if event == "HEARTBEAT":
        return [(encode_frame(spec.FRAME_HEARTBEAT, channel, b""), 0)]
    return [(method_frame(channel, method), method.ID) for method in METHODS[event]]


def recorder_at(phase: str, state: str, channel: int) -> Recorder:
    """An engine whose channel, and then whose connection, came there."""
    recorder = Recorder()
    recorder.receive(b"AMQP\x00\x00\x09\x01")
    recorder.set_phase(SPEC.phases.index("OPEN"))
    if state in ("HEADER", "BODY"):
        recorder.set_state(channel, SPEC.states.index("OPEN"))
        assert recorder.receive(frames("PUBLISH", channel)[0][0])
        if state == "BODY":
            assert recorder.receive(frames("HEADER", channel)[0][0])
    elif state != "ZERO":
        recorder.set_state(channel, SPEC.states.index(state))
    recorder.set_phase(SPEC.phases.index(phase))
    recorder.events.clear()
    return recorder


# PROTOCOL_HEADER takes no frame: the bytes that begin a connection are looked at first
@pytest.mark.parametrize(("phase", "state"), list(product(SPEC.phases[1:], SPEC.states)))
def test_each_frame_is_taken_ignored_or_refused_as_its_row_says(phase: str, state: str) -> None:
    channel = 0 if state == "ZERO" else 3
    for event in SPEC.events:
        row = SPEC.table[phase, state, event]
        for frame, method in frames(event, channel):
            recorder = recorder_at(phase, state, channel)
            case = (phase, state, event, method)
            went_on = recorder.receive(frame)
            if row.outcome == "take":
                assert len(recorder.events) == 1 and recorder.events[0][0] in (SEEN.get(event, "method"), "settle"), case
            elif row.outcome == "ignore":
                assert recorder.events == [], case
            else:
                one = SPEC.refusals[row.outcome]
                assert recorder.events == [("error", one.code, 0, one.text)], case
                assert recorder.error_method == ABOUT.get(one.about, method), case
            assert went_on == (row.outcome in ("take", "ignore")), case
            if state != "ZERO":
                assert recorder.state(channel) == SPEC.states.index(row.next or state), case


def test_an_empty_body_and_a_part_of_one_leave_the_states_that_the_remarks_name() -> None:
    recorder = recorder_at("OPEN", "HEADER", 3)
    assert recorder.receive(encode_frame(spec.FRAME_HEADER, 3, encode_properties(0, {})))
    assert recorder.state(3) == SPEC.states.index("OPEN")
    recorder = recorder_at("OPEN", "BODY", 3)
    assert recorder.receive(encode_frame(spec.FRAME_BODY, 3, b"a"))
    assert recorder.state(3) == SPEC.states.index("BODY")


def test_the_table_of_the_engine_has_the_numbers_of_its_states() -> None:
    declared = (gen_states.ROOT / "src/flintmq/protocol/v0_9_1/engine.pxd").read_text()
    for prefix, names in (("PHASE", SPEC.phases), ("RX", SPEC.states[:-1])):
        for number, name in enumerate(names):
            assert f"{prefix}_{name} = {number} " in declared or f"{prefix}_{name} = {number}\n" in declared


def test_a_case_without_a_row_and_one_with_two_are_refused() -> None:
    rows = SPEC.rows[1:]
    with pytest.raises(ValueError, match="no row holds"):
        gen_states.Receiving(SPEC.phases, SPEC.states, SPEC.events, SPEC.refusals, rows)
    with pytest.raises(ValueError, match="two rows hold"):
        gen_states.Receiving(SPEC.phases, SPEC.states, SPEC.events, SPEC.refusals, [*SPEC.rows, SPEC.rows[0]])
