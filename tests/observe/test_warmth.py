"""What ``status`` and ``explain`` say of idle workers, from a machine on the desk."""

from __future__ import annotations

import pytest

from firepool_ray.core import events as ev
from firepool_ray.core.actions import RevokeLease
from firepool_ray.core.model import QueueSpec
from firepool_ray.observe import situation, warmth
from tests.core.desk import ALICE, BOB, Desk, pool, profile, ready, want


def the_worker(desk: Desk, name: str) -> object:
    return warmth.describe_warmth(desk.pool, desk.pool.workers[name], desk.at)


@pytest.mark.parametrize(
    ("policy", "left_s", "why"),
    [
        ("fixed:7", 7.0, "keep_alive is fixed: 7 s after its last job"),
        ("always", None, "keep_alive is always: it goes when somebody else needs its lane"),
    ],
)
def test_a_fixed_policy_says_so(policy: str, left_s: float | None, why: str) -> None:
    desk = ready(pool(profile(keep_alive=policy)))
    (lease,) = desk.hold("c1")
    assert the_worker(desk, lease.worker) == {"held_for_s": None, "why": ""}  # busy
    desk.idle(lease)
    assert the_worker(desk, lease.worker) == {"held_for_s": left_s, "why": why}


def test_the_adaptive_policy_says_what_it_has_seen() -> None:
    spec = profile(keep_alive="adaptive", start_cost_s=20.0, grow_cost_s=0.0, standbys=0)
    desk = Desk(pool(spec), start=False)
    desk.grow_by_hand("l", "p", 1)
    desk.do(ev.Reconciled(0.0))
    (lease,) = desk.hold("c1")
    at = 0.0
    desk.idle(lease, since=at)
    said = the_worker(desk, lease.worker)
    assert isinstance(said, dict) and said["why"].startswith("only 0 pauses were seen: held for ")
    for _ in range(20):
        at += 2.0
        desk.do(ev.WorkerBusy(at, lease.worker, lease.fence, at))
        at += 1.0
        desk.idle(lease, since=at)
    said = the_worker(desk, lease.worker)
    assert isinstance(said, dict)
    assert said["why"].startswith("100 % of the pauses of default/alice end within 2.26 s")
    assert said["held_for_s"] == pytest.approx(2.26, abs=0.01)


def test_what_went_is_listed_with_its_reason() -> None:
    desk = ready(pool(profile(max_lanes=1, keep_alive="fixed:60")))
    (lease,) = desk.hold("c1")
    for worker in [w for w in desk.pool.workers.values() if w.state == "starting"]:
        desk.do(ev.WorkerStarted(desk.at, worker.id))
    desk.idle(lease)
    (revoke,) = desk.sync("c2", want(BOB), at=5.0)
    assert isinstance(revoke, RevokeLease)
    desk.do(ev.RevokeAnswered(5.0, lease.worker, lease.fence, "gone"))
    (row,) = warmth.describe_let_go(desk.pool, 6.0)
    assert row == {
        "worker": lease.worker,
        "caller": "default/alice",
        "profile": "p",
        "ago_s": 1.0,
        "idle_s": 5.0,
        "why": "another caller waited: it got the lane",
    }
    assert warmth.describe_let_go(desk.pool, 6.0, ALICE) == [row]
    assert warmth.describe_let_go(desk.pool, 6.0, BOB) == []


def test_a_queue_shows_its_budget_its_terms_and_what_others_said_of_it() -> None:
    queues = (QueueSpec("default", quota=2.0), QueueSpec("rl"))
    desk = ready(pool(profile(max_lanes=4), queues=queues), p=4)
    leases = desk.hold("c1", count=2)
    desk.idle(leases[0])
    desk.do(
        ev.QueueSignal(1.0, "default", limit=3.0, running=1.0, pending=5.0, age_s=2.0, source="k")
    )
    row = situation.describe_queue(desk.pool, "default", 1.0)
    assert (row["quota"], row["limit"]) == (2.0, 3.0)
    assert row["signal"] == {"source": "k", "age_s": 2.0, "running": 1.0, "pending": 5.0}
    (terms,) = row["budgets"]
    assert terms["gpu_type"] == "gpu"
    assert (terms["running"], terms["idle"], terms["cap"]) == (2.0, 1.0, 4.0)
    assert terms["demand"] == 1.0  # of the five that wait outside, the limit lets one in
    assert terms["need"] == 1.0 and terms["budget"] == 0.0
    assert situation.describe_queue(desk.pool, "rl", 1.0)["signal"] is None
