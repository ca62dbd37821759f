"""config.Limits: defaults, copies, and what is refused."""

from __future__ import annotations

import pytest

from flintmq.config import Config, Limits


def test_a_copy_differs_in_what_was_given_only():
    limits = Limits(heartbeat_s=5).replace(channels_max=3)
    assert (limits.heartbeat_s, limits.channels_max, limits.frame_size_max) == (5, 3, Limits().frame_size_max)
    assert Limits().heartbeat_s != 5
    changed = Config().with_limits(heartbeat_s=7)
    assert changed.limits.heartbeat_s == 7 and changed.host == Config().host


def test_an_unknown_limit_is_refused_with_its_name():
    for make in (lambda: Limits(heartbeet_s=5), lambda: Limits().replace(heartbeet_s=5), lambda: Config().with_limits(heartbeet_s=5)):
        with pytest.raises(TypeError, match="heartbeet_s"):
            make()


def test_limits_do_not_change():
    with pytest.raises(AttributeError, match="heartbeat_s"):
        Limits().heartbeat_s = 5  # type: ignore[misc]
