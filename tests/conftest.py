"""What holds for all tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.servers import Unavailable

# How long an example takes says something about the machine only, and this one may be busy.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """A broker of the test's process changes the level of the process's log: later tests read lines of it."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdCluster]:
    """One member of etcd, for the tests of a module."""
    try:
        with etcd_cluster() as made:
            yield made
    except Unavailable as error:
        pytest.skip(f"no etcd: {error}")
