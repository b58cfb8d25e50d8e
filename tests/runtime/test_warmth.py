"""Keep-alive and budgets on a real pool: what callers, people and cluster queues can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray

import firepool_ray as fp
from tests import jobs
from tests.conftest import PATIENCE_S, eventually, pool_of

SETTINGS = {
    "profiles": {
        "held": {"cpus": 0.5, "max_lanes": 2, "keep_alive": "always", "lane_keep_s": 300.0},
        "learns": {"cpus": 0.5, "max_lanes": 1, "lane_keep_s": 0.0},
    },
    "queues": {"rl": {"limit_gpus": 2}},
    "signal_stale_s": 1.0,
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    with pool_of(SETTINGS) as handle:
        yield handle


def idle_of(caller: str) -> list[dict[str, Any]]:
    return [
        worker
        for lane in fp.status()["lanes"]
        for worker in lane["workers"]
        if worker["state"] == "idle" and worker["caller"] == f"default/{caller}"
    ]


def test_closing_releases_a_callers_workers_at_once_and_only_its_own(pool: Any) -> None:
    done, stays = fp.options(caller="done"), fp.options(caller="stays")
    assert done.submit(jobs.pid).result(timeout_s=PATIENCE_S) > 0
    kept = stays.submit(jobs.pid).result(timeout_s=PATIENCE_S)
    (worker,) = eventually(lambda: idle_of("done"))
    assert worker["held_for_s"] is None and worker["why"].startswith("keep_alive is always")
    done.closing()
    eventually(lambda: not idle_of("done"))
    (gone,) = [row for row in fp.status()["let_go"] if row["worker"] == worker["worker"]]
    assert (gone["caller"], gone["why"]) == ("default/done", "its caller said that it is done")
    # The other caller's worker is as warm as before, and closing is no goodbye.
    again = stays.submit(jobs.pid)
    assert again.result(timeout_s=PATIENCE_S) == kept and again.info().source == "warm"
    assert done.submit(jobs.pid).result(timeout_s=PATIENCE_S) > 0


def test_an_idle_worker_is_let_go_by_itself_and_explain_says_why(pool: Any) -> None:
    learner = fp.options(caller="learner", profile="learns")
    assert learner.submit(jobs.pid).result(timeout_s=PATIENCE_S) > 0
    (worker,) = eventually(lambda: idle_of("learner"), every_s=0.02)
    assert "pauses were seen" in worker["why"] and worker["held_for_s"] is not None
    eventually(lambda: not idle_of("learner"))
    explained = ray.get(pool.explain.remote("learner"))
    (gone,) = [row for row in explained["let_go"] if row["worker"] == worker["worker"]]
    assert gone["why"].startswith("it was idle for as long as holding it pays")


def test_what_a_cluster_queue_says_counts_until_it_is_stale(pool: Any) -> None:
    def queue() -> dict[str, Any]:
        return next(row for row in fp.status()["queues"] if row["queue"] == "rl")

    ray.get(pool.queue_signal.remote("rl", {"limit": 0.0, "pending": 3.0, "source": "test"}))
    said = queue()
    assert said["limit"] == 0.0 and said["signal"]["source"] == "test"
    assert {row["gpu_type"] for row in said["budgets"]} == {"none"}
    blocked = fp.options(caller="b", queue="rl").submit(jobs.pid)  # waits; it is not impossible
    assert blocked.result(timeout_s=PATIENCE_S) > 0
    assert queue()["limit"] == 2.0 and queue()["signal"] is None


@pytest.mark.parametrize(
    ("name", "said", "match"),
    [
        ("nowhere", {}, "does not have"),
        ("rl", {"quota": -1.0}, "out of range"),
        ("rl", {"wieght": 1.0}, "wieght"),
    ],
)
def test_a_signal_that_makes_no_sense_is_refused(
    pool: Any, name: str, said: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        ray.get(pool.queue_signal.remote(name, said))
