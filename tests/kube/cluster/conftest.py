"""Tests that need a Kubernetes cluster: one cluster per module, by ``make test-kube``.

A module says what it needs by ``NODES = "..."``, ``KUEUE = True`` and ``OPERATOR = False``.
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
    operator = getattr(request.module, "OPERATOR", True)
    with Bed(nodes, kueue=kueue, operator=operator) as bed:
        yield bed
