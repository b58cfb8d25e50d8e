"""What ``firepool bench --kube`` makes of what it saw; the clusters are in tests/kube/cluster."""

from __future__ import annotations

import time
from typing import Any

import pytest
from click.testing import CliRunner

from firepool_ray.cli.bench import kube_faults, kube_figures, kube_groups, kube_plan, kube_suite
from firepool_ray.cli.bench.figures import Measured
from firepool_ray.cli.bench.kube_plan import Agents, Ran, Rollouts, Step
from firepool_ray.cli.bench.kube_site import Row, Where, rows_of
from firepool_ray.cli.commands import main
from firepool_ray.config import PoolConfig
from firepool_ray.errors import KubeError, PoolUnavailable, UnknownName
from firepool_ray.kube.nodes import PodFacts, facts_of
from tests.kube.fakes import FakeKube


def test_both_arms_get_the_same_jobs_within_the_bounds() -> None:
    plan = kube_plan.agents(16, 5)
    assert plan == kube_plan.agents(16, 5)
    steps = [step for own in plan.steps for step in own]
    assert len(steps) == 80
    assert all(0.2 <= job <= 1.0 and 0.5 <= pause <= 3.0 for job, pause in steps)
    assert len(set(steps)) == 80


def test_the_ideal_is_what_is_left_when_starts_are_free() -> None:
    assert Agents([[Step(1, 2), Step(3, 4)], [Step(0.5, 1.5)]]).ideal_s == 6
    assert Rollouts([[1, 3, 2], [0.5]], update_s=2).ideal_s == 7.5


def test_a_change_counts_from_its_moment_to_the_look_that_shows_it() -> None:
    seen = [(10.0, 1), (11.5, 2), (14.0, 3), (20.0, 3)]
    changed = [(9.0, 1), (11.0, 2), (13.0, 3), (16.0, 1), (21.0, 2)]
    assert kube_faults.delays(changed, seen) == [0.5, 1.0, 4.0]


def test_capacity_is_back_after_it_was_missed() -> None:
    lanes = [(0.0, 6), (11.0, 5), (17.0, 6), (31.0, 5), (32.0, 4), (39.0, 5), (40.5, 6), (51.0, 5)]
    killed = [10.0, 30.0, 45.0]
    assert kube_faults.back_after(killed, lanes, 6) == [7.0, 10.5, kube_faults.BACK_S]
    # with a lane too many, nothing is missed
    assert kube_faults.back_after([10.0], [(11.0, 6)], 6) == []


class Standing:
    """A pool whose pods are ready at once, its lanes only after some looks."""

    def __init__(self, rows: list[Row], looks: int = 0) -> None:
        self.rows, self.looks, self.kills, self.early = rows, looks, 0, 0
        self.begun: list[Row] = []
        self._left = 0

    def lane_pods(self) -> list[PodFacts]:
        pod = facts_of({"metadata": {"name": "a"}, "status": {"phase": "Running"}})
        return [pod._replace(ready=True)] * kube_faults.LANES

    def head_pod(self) -> str:
        return "head"

    def begin(self, task: str, **arguments: Any) -> str:
        self.begun.append(arguments)
        return task

    def await_running(self, job: str) -> None:
        assert job == "load"

    def delete(self, pod: str, grace_s: int | None = None) -> None:
        self.early += self._left > 0
        self.kills, self._left = self.kills + 1, self.looks

    def told(self, job: str) -> list[Row]:
        self._left -= 1
        return [{"ready": kube_faults.LANES - (self._left > 0)}]

    def stop(self, job: str, timeout_s: float) -> list[Row]:
        return [{"at": time.time(), **row} for row in self.rows]


def test_the_next_pod_is_killed_only_once_the_lanes_are_back(quick: None) -> None:
    site = Standing([{"job": "1", "outcome": "ok"}], looks=3)
    found = kube_faults.kills(site)  # type: ignore[arg-type]
    assert next(found).value == 0
    assert (site.kills, site.early) == (kube_faults.KILLS, 0)
    # not one of them was seen in the lanes: no figure, rather than one of the others
    with pytest.raises(PoolUnavailable, match="only 0 of 20 kills"):
        next(found)


def test_new_callers_ask_for_grants_while_the_head_is_lost(quick: None) -> None:
    warm = {"job": "1", "outcome": "ok", "start_s": 0.01, "source": "warm"}
    new = {"job": "2", "outcome": "ok", "start_s": 4.0, "source": "standby"}
    site = Standing([warm, new])
    lost, grant = kube_faults.head(site)  # type: ignore[arg-type]
    assert site.begun[0]["fresh_s"] == kube_faults.FRESH_S
    assert lost.value == 0 and 4.0 <= grant.value < 5.0
    with pytest.raises(PoolUnavailable, match="no new grant"):
        list(kube_faults.head(Standing([warm])))  # type: ignore[arg-type]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firepool_ray.cli.bench.kube_faults.time.sleep", lambda seconds: None)


def test_a_row_that_is_still_on_its_way_waits_for_its_end() -> None:
    assert rows_of('noise\n{"ready": 5}\n{"rea') == [{"ready": 5}]
    assert rows_of('{"ready": 5}\n{"done": true}\n') == [{"ready": 5}, {"done": True}]


def test_a_start_of_another_kind_is_no_figure() -> None:
    rows: list[dict[str, Any]] = [{"start_s": 0.02, "source": "standby"} for _ in range(3)]
    found = list(kube_groups._single("promotion", rows, "standby", 50, 2.0, 10.0))
    assert [(m.name, m.value) for m in found] == [
        ("kube_promotion", 0.01),
        ("kube_promotion_ray", 0.002),
    ]
    rows.append({"start_s": 0.001, "source": "warm"})
    with pytest.raises(AssertionError, match="expected standby starts"):
        list(kube_groups._single("promotion", rows, "standby", 50, 2.0, 10.0))


def test_a_loop_is_told_beside_its_ceiling() -> None:
    pool, fresh = Ran(11.0, [0.01, 0.01, 0.2], {"warm": 3}), Ran(30.0, [2.0, 2.0, 4.0], {})
    start, ray, loop = kube_groups._loop("agents", pool, fresh, 10.0, 8.0)
    assert (start.value, ray.value, loop.value) == (200, 800, 1.1)
    assert "2.73 x faster than fresh pods, at most 3.00 x is possible" in loop.detail


# ------------------------------------------------------------ the suite


def test_every_figure_has_its_group() -> None:
    assert list(kube_figures.GROUPS) == list(kube_groups.GROUPS)
    assert sum(map(len, kube_figures.GROUPS.values())) == len(kube_figures.TARGETS)


def test_a_group_that_fails_costs_its_own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(where: Where) -> Any:
        yield Measured("kube_promotion", 0.005, "told")
        raise KubeError("the API server does not answer")

    monkeypatch.setitem(kube_groups.GROUPS, "loops", broken)
    monkeypatch.setitem(
        kube_groups.GROUPS, "idle", lambda where: iter([Measured("kube_requests", 3.0, "few")])
    )
    where = Where(FakeKube(), {})  # type: ignore[arg-type]
    monkeypatch.setattr(kube_suite, "_where", lambda pool: where)
    only = ["kube_promotion", "kube_handover", "kube_requests"]
    figures = {figure.name: figure for figure in kube_suite.measure(only)}
    assert (figures["kube_promotion"].value, figures["kube_promotion"].ok) == (0.005, True)
    assert figures["kube_handover"].value is None
    assert "does not answer" in figures["kube_handover"].detail
    assert figures["kube_requests"].ok
    monkeypatch.setitem(kube_groups.GROUPS, "idle", lambda where: iter([max([])]))
    (figure,) = kube_suite.measure(["kube_requests"])
    assert figure.value is None and "ValueError" in figure.detail
    with pytest.raises(UnknownName, match="kube_nothing"):
        kube_suite.measure(["kube_nothing"])


def test_the_pool_file_says_where_pods_may_run() -> None:
    base = {"image": "mine:1", "node_selector": {"gpu": "h200"}, "network_policy": False}
    pool = Where(FakeKube(), base, "nvidia.com/mig-1g").config(max_lanes=2)  # type: ignore[arg-type]
    assert isinstance(pool, PoolConfig) and pool.kubernetes is not None
    assert pool.kubernetes.image == "mine:1"
    assert pool.kubernetes.node_selector == {"gpu": "h200"}
    assert pool.profiles["bench"].pod.gpu_resource == "nvidia.com/mig-1g"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kube", "--loops"], "benchmark of its own"),
        (["-f", "pool.yaml"], "-f goes with --kube"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["bench", *arguments])
    assert result.exit_code != 0
    assert said in result.output + str(result.exception)
