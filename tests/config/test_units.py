"""Sizes as operators write them: RabbitMQ's units, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.config.units import SIZE_MAX, share_of, size_of

# rabbit_resource_monitor_misc.erl, parse_information_unit/1 (its PiB is mistyped as 2014 TiB there)
RABBITMQ = {
    "k K kB KB kb Kb": 10**3, "Ki ki kiB KiB kib KIB": 2**10, "m M MB mb Mb": 10**6, "Mi mi MiB mib MIB": 2**20,
    "g G GB gb Gb": 10**9, "Gi gi GiB gib GIB": 2**30, "TB tb Tb": 10**12, "Ti TiB tib TIB": 2**40, "p P PB pb Pb": 10**15,
    "Pi PiB pib PIB": 2**50,
}  # fmt: skip


def test_units_are_those_of_rabbitmq() -> None:
    for units, factor in RABBITMQ.items():
        for unit in units.split():
            assert size_of(f"7{unit}") == size_of(f" 7 {unit} ") == 7 * factor, unit
    assert size_of("7") == size_of("7B") == 7 and size_of("0") == 0


@pytest.mark.parametrize("text", ["", "GB", "-1", "1.5GB", "1ib", "1i", "1BB", "1GBit", "1 GB 2", "0x10", "١", "1e9", "1" * 16, "9999PiB0"])
def test_no_other_text_is_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size: a number of bytes"):
        size_of(text)


def test_a_size_has_64_bits() -> None:
    with pytest.raises(ValueError, match="more than 64 bits"):
        size_of("999999PB")


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_one_clear_error(text: str) -> None:
    try:
        assert 0 <= size_of(text) <= SIZE_MAX
    except ValueError as error:
        assert "is no size" in str(error) or "64 bits" in str(error)
    try:
        share = share_of(text)
        assert share is None or 0 < share <= 1
    except ValueError as error:
        assert "is no share" in str(error)


def test_a_share_has_a_point_or_a_percent_sign() -> None:
    assert [share_of(text) for text in ("60%", "0.6", " 12.5 % ", "100%", ".5", "1.0")] == [0.6, 0.6, 0.125, 1.0, 0.5, 1.0]
    assert [share_of(text) for text in ("1", "60", "60%%", "%", ".", "1GB", "-5%", "nan%", "1e2%")] == [None] * 9
    assert share_of("150%", 10.0) == 1.5
    for text in ("0%", "0.0", "101%", "1.1"):
        with pytest.raises(ValueError, match="is no share above 0 and at most 100%"):
            share_of(text)
