"""Applying a RayCluster again takes nothing away from those who run it, or run on it."""

from __future__ import annotations

from typing import Any

from firepool_ray.kube.api import Object
from firepool_ray.kube.merging import beside


def group(name: str, replicas: int, most: int, image: str = "a", **more: Any) -> Object:
    container = {"name": "ray-worker", "image": image}
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": 0,
        "maxReplicas": most,
        "template": {"spec": {"containers": [container]}},
        **more,
    }


def cluster(*groups: Object, **spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {**spec, "workerGroupSpecs": list(groups)}}


def counts(merged: Object) -> dict[str, tuple[int, int, int]]:
    return {
        g["groupName"]: (g["minReplicas"], g["replicas"], g["maxReplicas"])
        for g in merged["spec"]["workerGroupSpecs"]
    }


def test_the_autoscaler_keeps_its_pods() -> None:
    deleting = {"workersToDelete": ["p-1"]}
    living = cluster(group("gpu", 3, 4, scaleStrategy=deleting))
    merged = beside(cluster(group("gpu", 0, 8)), living)
    assert counts(merged) == {"gpu": (0, 3, 8)}
    assert merged["spec"]["workerGroupSpecs"][0]["scaleStrategy"] == deleting


def test_kueue_keeps_its_word_on_suspension() -> None:
    for word in (True, False):
        merged = beside(cluster(suspend=True), cluster(suspend=word))
        assert merged["spec"]["suspend"] is word
    merged = beside(cluster(), cluster())
    assert "suspend" not in merged["spec"]


def test_bounds_are_those_of_the_pool_file() -> None:
    """Pods beyond them have been drained before."""
    merged = beside(cluster(group("gpu", 0, 2)), cluster(group("gpu", 3, 4)))
    assert counts(merged) == {"gpu": (0, 2, 2)}
    merged = beside(cluster(group("gpu", 0, 2)), cluster(group("gpu", 1, 4)))
    assert counts(merged) == {"gpu": (0, 1, 2)}


def test_a_minimum_is_raised_at_once() -> None:
    merged = beside(cluster(group("gpu", 2, 4, minReplicas=2)), cluster(group("gpu", 0, 4)))
    assert counts(merged) == {"gpu": (2, 2, 4)}


def test_a_group_left_out_goes() -> None:
    living = cluster(group("old", 0, 4), group("gpu", 0, 4))
    assert counts(beside(cluster(group("gpu", 0, 4)), living)) == {"gpu": (0, 0, 4)}


def test_neither_side_is_changed() -> None:
    wanted, living = cluster(group("gpu", 0, 2), suspend=True), cluster(group("gpu", 3, 4))
    before = repr((wanted, living))
    beside(wanted, living)
    assert repr((wanted, living)) == before
