"""Tests that need a Kubernetes cluster: one cluster per module, by ``make test-kube``.

A module says what it needs by ``NODES = "..."`` and ``KUEUE = True``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kube.bed import Bed
from tests.kube.bed.nodes import DEFAULT_NODES


@pytest.fixture(scope="module")
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    nodes = getattr(request.module, "NODES", DEFAULT_NODES)
    kueue = getattr(request.module, "KUEUE", False)
    with Bed(nodes, kueue=kueue) as bed:
        yield bed
