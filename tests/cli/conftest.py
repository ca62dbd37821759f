"""The pipeline commands use the broker and the Spark session of the pipeline's tests."""

from __future__ import annotations

from tests.pipeline.conftest import plane_broker, spark

__all__ = ["plane_broker", "spark"]
