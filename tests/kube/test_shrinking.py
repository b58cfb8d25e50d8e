"""Which pods go where a group may have fewer, and which run in an old form."""

from __future__ import annotations

from typing import Any

from firepool_ray.kube import shrinking
from firepool_ray.kube.api import Object
from firepool_ray.kube.nodes import MOST_PODS, groups_of
from firepool_ray.kube.shrinking import Surplus
from tests.kube.server import pod

FORM: Object = {
    "name": "ray-worker",
    "image": "a",
    "env": [{"name": "A", "value": "1"}],
    "resources": {"limits": {"cpu": "1"}},
}


def group(name: str, replicas: int, most: int, least: int = 0, **form: Any) -> Object:
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": least,
        "maxReplicas": most,
        "template": {"spec": {"containers": [{**FORM, **form}]}},
    }


def cluster(*groups: Object) -> Object:
    head = {"template": {"spec": {"containers": [FORM]}}}
    spec = {"headGroupSpec": head, "workerGroupSpecs": list(groups)}
    return {"metadata": {"name": "p"}, "spec": spec}


def pods(*rows: tuple[str, str, str, bool]) -> list[Object]:
    return [
        pod("p", name, of, made=made, ready=ready, container=FORM) for name, of, made, ready in rows
    ]


def test_pods_that_do_not_run_go_first_then_the_youngest() -> None:
    there = pods(
        ("young", "gpu", "2026-01-03", True),
        ("old", "gpu", "2026-01-01", True),
        ("pending", "gpu", "2026-01-02", False),
    )
    living = cluster(group("gpu", 3, 4))
    for most, gone in ((3, ()), (2, ("pending",)), (1, ("young", "pending"))):
        found = shrinking.surplus_of(cluster(group("gpu", 0, most)), living, there)
        assert found == ([Surplus("gpu", most, gone)] if gone else [])


def test_a_group_left_out_loses_all_and_leaving_pods_do_not_count() -> None:
    there = pods(("a", "old", "1", True), ("b", "gpu", "1", True))
    there.append(pod("p", "c", "gpu", leaving=True))
    living = cluster(group("old", 1, 2), group("gpu", 2, 2))
    found = shrinking.surplus_of(cluster(group("gpu", 0, 1)), living, there)
    assert found == [Surplus("old", 0, ("a",))]


def test_growth_heeds_what_is_announced_before_bounds_are_lowered() -> None:
    living = cluster(group("system", 1, 1, 1), group("gpu", 4, 4, 3))
    surplus = [Surplus("gpu", 2, ("a", "b"))]
    change = shrinking.announced(living, surplus)
    announced = {**living, **change}
    assert [(g.replicas, g.minimum, g.maximum) for g in groups_of(announced)] == [
        (1, 1, 1),
        (2, 2, 2),
    ]
    assert [g["maxReplicas"] for g in announced["spec"]["workerGroupSpecs"]] == [1, 4]
    lowered = shrinking.lowered(living, surplus)["spec"]["workerGroupSpecs"]
    assert [(g["replicas"], g["maxReplicas"]) for g in lowered] == [(1, 1), (2, 2)]
    assert living == cluster(group("system", 1, 1, 1), group("gpu", 4, 4, 3))


def test_nonsense_in_the_announcement_is_no_bound() -> None:
    for text in ("", "[]", "{", '{"gpu": "x"}', "1"):
        odd = cluster(group("gpu", 1, 4))
        odd["metadata"]["annotations"] = {MOST_PODS: text}
        assert groups_of(odd)[0].maximum == 4


def test_an_old_form_is_seen_by_image_size_and_environment() -> None:
    there = pods(("a", "gpu", "1", True), ("h", "headgroup", "1", True))
    assert shrinking.outdated_of(cluster(group("gpu", 1, 1)), there) == {}
    for changed in (
        {"image": "b"},
        {"env": [{"name": "A", "value": "2"}]},
        {"env": [{"name": "B", "value": "1"}]},
        {"resources": {"limits": {"cpu": "2"}}},
    ):
        found = shrinking.outdated_of(cluster(group("gpu", 1, 1, **changed)), there)
        assert found == {"gpu": ["a"]}, changed


def test_what_the_operator_adds_is_no_other_form() -> None:
    added = {**FORM, "env": [*FORM["env"], {"name": "RAY_IP", "value": "x"}], "ports": []}
    there = [pod("p", "a", "gpu", container=added)]
    assert shrinking.outdated_of(cluster(group("gpu", 1, 1)), there) == {}
