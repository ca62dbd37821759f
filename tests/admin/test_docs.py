"""docs/HTTP.md names the numbers that hold; tests/tools/test_newcomer.py runs its commands."""

from __future__ import annotations

from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "HTTP.md"


def test_the_document_names_the_limits() -> None:
    """Numbers of the document are those of the configuration."""
    from flintmq.config import KIB, MIB, Limits

    limits, text = Limits(), DOCUMENT.read_text()
    assert (limits.pull_hold_ms_max, limits.pull_messages_max, limits.pull_bytes_max) == (60_000, 1_000, 8 * MIB)
    assert (limits.pull_visibility_ms, limits.pull_visibility_ms_min, limits.pull_visibility_ms_max) == (30_000, 1_000, 43_200_000)
    assert (limits.http_connections_max, limits.http_head_bytes_max, limits.http_leases_max) == (4_096, 16 * KIB, 1_000)
    assert (limits.http_json_bytes_max, limits.http_publish_bytes_max, limits.http_request_ms) == (128 * KIB, 16 * MIB, 20_000)
    assert (limits.pull_leases_max, limits.pull_groups_max) == (100_000, 10_000)
    for number in ("60", "1,000", "8 MiB", "43,200", "4,096", "16 KiB", "128 KiB", "16 MiB", "100,000", "10,000"):
        assert number in text
