"""What a ClusterQueue may use at most, in cohorts flat and deep."""

from __future__ import annotations

import math
from typing import Any

import pytest

from firepool_ray.kube.queues.cohorts import most, quotas_of

GPU = "nvidia.com/gpu"


def groups(**flavors: tuple[Any, ...]) -> list[dict[str, Any]]:
    """flavor=(nominal, borrowingLimit, lendingLimit); None leaves a limit out."""
    rows = []
    for flavor, (nominal, *limits) in flavors.items():
        row = {"name": GPU, "nominalQuota": nominal}
        for key, limit in zip(("borrowingLimit", "lendingLimit"), limits, strict=False):
            if limit is not None:
                row[key] = limit
        rows.append({"name": flavor, "resources": [{"name": "cpu", "nominalQuota": 64}, row]})
    return [{"coveredResources": ["cpu", GPU], "flavors": rows}]


def queue(name: str, cohort: str = "", **flavors: tuple[Any, ...]) -> dict[str, Any]:
    spec = {"resourceGroups": groups(**flavors), **({"cohortName": cohort} if cohort else {})}
    return {"metadata": {"name": name}, "spec": spec}


def cohort(name: str, parent: str = "", **flavors: tuple[Any, ...]) -> dict[str, Any]:
    spec = {"resourceGroups": groups(**flavors), **({"parentName": parent} if parent else {})}
    return {"metadata": {"name": name}, "spec": spec}


def test_quotas_are_read_per_flavor() -> None:
    mine = queue("a", h100=("8", "2", "4"), a100=(4,))
    assert quotas_of(mine, GPU) == {"h100": (8, 2, 4), "a100": (4, math.inf, math.inf)}
    assert quotas_of(mine, "amd.com/gpu") == {}
    assert quotas_of({"metadata": {"name": "b"}}, GPU) == {}


@pytest.mark.parametrize(
    ("queues", "cohorts", "expected"),
    [
        # alone: its own quota, whatever it might borrow elsewhere
        ([queue("a", x=(4, "9"))], [], 4),
        # a cohort that no object describes
        ([queue("a", "c", x=(4,)), queue("b", "c", x=(6,))], [], 10),
        ([queue("a", "c", x=(4, 2)), queue("b", "c", x=(6,))], [], 6),
        ([queue("a", "c", x=(4,)), queue("b", "c", x=(6, None, 1))], [], 5),
        # what it lends to nobody stays its own
        ([queue("a", "c", x=(4, None, 0)), queue("b", "c", x=(6,))], [], 10),
        # flavors do not mix, and one that it does not name it cannot use
        ([queue("a", "c", x=(4,)), queue("b", "c", y=(6,))], [], 4),
        ([queue("a", "c", x=(4, 0), y=(0, 1)), queue("b", "c", y=(6,))], [], 5),
        # quota of the cohort itself, and of the one above
        ([queue("a", "c", x=(4,))], [cohort("c", x=(3,))], 7),
        (
            [queue("a", "c", x=(4,)), queue("b", "d", x=(5,))],
            [cohort("c", "top", x=(3,)), cohort("d", "top")],
            12,
        ),
        # a cohort that may borrow 1 from above and lends nothing
        (
            [queue("a", "c", x=(4,)), queue("b", "top", x=(5,))],
            [cohort("c", "top", x=(0, 1, 0))],
            5,
        ),
        # a circle, which Kueue refuses too, is no endless loop
        ([queue("a", "c", x=(4,))], [cohort("c", "d"), cohort("d", "c")], 4),
    ],
)
def test_the_most_is_what_kueue_would_grant(
    queues: list[Any], cohorts: list[Any], expected: float
) -> None:
    assert most("a", queues, cohorts, GPU) == expected


def test_the_older_name_of_a_cohort_is_understood() -> None:
    mine = queue("a", x=(1,))
    mine["spec"]["cohort"] = "c"
    assert most("a", [mine, queue("b", "c", x=(2,))], [], GPU) == 3
