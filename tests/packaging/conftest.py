"""A broker with a data plane."""

from __future__ import annotations

from tests.pipeline.conftest import plane_broker

__all__ = ["plane_broker"]
