"""The pages of ``status`` and ``explain``, from the plain values the controller sends."""

from __future__ import annotations

from typing import Any

import pytest

from firepool_ray.cli import render

WAITING = {
    "caller": "rl/rollouts",
    "queue": "rl",
    "profile": "gpu",
    "deps": "",
    "priority": 0,
    "count": 3,
    "oldest_age_s": 1.25,
    "reason": "all 1 lanes of 'gpu' are taken",
}


def described(**changes: Any) -> dict[str, Any]:
    worker = {"slot": 0, "pid": 7, "deps": "", "client": "", "age_s": 4.0, "caller": ""}
    whole = {
        "epoch": 3,
        "pid": 123,
        "node": "n" * 40,
        "uptime_s": 12.34,
        "embedded": False,
        "memory_bytes": 80_000_000,
        "units": {"reserved": 2.0, "held": 1.0, "idle": 1.0, "max": None, "idle_cap": 1.0},
        "lanes": [
            {
                "lane": "e1l2",
                "profile": "gpu",
                "node": "abcdef0123456789",
                "state": "ready",
                "age_s": 9.0,
                "gpus": 1.0,
                "gpu_ids": ["0"],
                "detail": "",
                "workers": [
                    {**worker, "worker": "e1w1", "state": "idle", "caller": "rl/rollouts"},
                    {**worker, "worker": "e1w2", "slot": 1, "state": "standby"},
                ],
            },
            {
                "lane": "e1l3",
                "profile": "gpu",
                "node": "",
                "state": "growing",
                "age_s": 0.5,
                "gpus": 1.0,
                "gpu_ids": [],
                "detail": "",
                "workers": [],
            },
        ],
        "workers": {"by_state": {"idle": 1, "standby": 1}, "by_caller": {"rl/rollouts": 1}},
        "queues": [
            {
                "queue": "rl",
                "quota": 1.0,
                "limit": None,
                "weight": 2.0,
                "held": 1.0,
                "idle": 1.0,
                "demand": 3.0,
                "demand_workers": 3,
            }
        ],
        "profiles": [{"profile": "gpu", "breaker": "closed", "last_failure": ""}],
        "sources": {"warm": 120, "standby": 3},
        "latency_s": {"warm": {"count": 120, "p50": 0.0008, "p90": 0.001, "p99": 0.0123}},
        "clients": [{}],
        "waiting": [WAITING],
    }
    return {**whole, **changes}


def test_status_shows_every_part() -> None:
    assert render.status(described()).splitlines() == [
        "pool, epoch 3, up 12.3 s: 2 units reserved, 1 held, 1 of them idle (idle cap 1); 1 client",
        "",
        "Lanes",
        "  lane  profile  node      gpus  state    slot  worker   caller          age",
        "  e1l2  gpu      abcdef01  0     ready       0  idle     rl/rollouts     4 s",
        "                                             1  standby  -               4 s",
        "  e1l3  gpu      -         1     growing     -  -        -            500 ms",
        "",
        "Workers",
        "  idle 1  standby 1",
        "  rl/rollouts 1",
        "",
        "Queues",
        "  queue  quota  limit  weight  held  idle  demand",
        "  rl         1      -       2     1     1       3",
        "",
        "Starts",
        "  source    jobs     p50   p90      p99",
        "  warm       120  800 us  1 ms  12.3 ms",
        "  standby      3       -     -        -",
        "  handover     0       -     -        -",
        "  cold         0       -     -        -",
        "",
        "Waiting",
        "  caller       profile  priority  jobs  oldest  why",
        "  rl/rollouts  gpu             0     3  1.25 s  all 1 lanes of 'gpu' are taken",
    ]


BUDGET = {
    "gpu_type": "gpu",
    "budget": 2.0,
    "idle": 1.0,
    "running": 3.0,
    "demand": 0.0,
    "need": 2.0,
    "within_quota": 1.0,
    "beyond_quota": 1.0,
    "cap": 8.0,
}
LET_GO = {
    "worker": "e1w7",
    "caller": "rl/rollouts",
    "profile": "gpu",
    "ago_s": 3.0,
    "idle_s": 21.5,
    "why": "another caller waited: it got the lane",
}


def test_status_shows_budgets_with_their_terms_and_why_workers_went() -> None:
    queue = {**described()["queues"][0], "budgets": [BUDGET]}
    gone = [{**LET_GO, "worker": f"e1w{number}"} for number in range(7)]
    page = render.status(described(queues=[queue], let_go=gone)).splitlines()
    start = page.index("Budgets for idle workers")
    assert " ".join(page[start + 1].split()) == (
        "queue gpus of budget idle need within quota beyond quota running demand cap"
    )
    assert " ".join(page[start + 2].split()) == "rl gpu 2 1 2 1 1 3 0 8"
    start = page.index("Let go (newest last)")
    assert [line.split()[0] for line in page[start + 2 : start + 7]] == [
        f"e1w{number}" for number in range(2, 7)
    ]
    assert page[start + 2].endswith("3 s    21.5 s  another caller waited: it got the lane")


def test_explain_says_for_how_long_and_why_a_worker_is_held() -> None:
    lease = {
        "worker": "e1w1",
        "lane": "e1l2",
        "node": "abcdef0123",
        "state": "idle",
        "age_s": 60.0,
        "held_for_s": 12.5,
        "why": "83 % of the pauses of rl/rollouts end within 22 s",
    }
    page = render.explanation({"message": "m", "leases": [lease], "let_go": [LET_GO]})
    assert "12.5 s  83 % of the pauses of rl/rollouts end within 22 s" in page
    assert "Let go (newest last)" in page and "e1w7" in page


def test_status_of_an_empty_pool_has_no_empty_tables() -> None:
    empty = described(
        lanes=[], workers={"by_state": {}, "by_caller": {}}, queues=[], waiting=[], clients=[]
    )
    page = render.status(empty)
    assert "Lanes" not in page and "Waiting" not in page and "0 clients" in page


def test_status_names_trouble() -> None:
    lane = {**described()["lanes"][0], "state": "quarantined", "detail": "a process is left"}
    profile = {"profile": "gpu", "breaker": "open", "last_failure": "no module named torch"}
    page = render.status(described(lanes=[lane], profiles=[profile]))
    assert "lane e1l2 is quarantined: a process is left" in page
    assert "profile gpu is not started: no module named torch" in page


def test_explanation_of_a_job() -> None:
    record = {
        "job": "j1",
        "name": "score",
        "caller": "rl/rollouts",
        "source": "standby",
        "outcome": "ok",
        "worker": "e1w1",
        "submitted_at": 100.0,
        "received_at": 100.02,
        "started_at": 100.021,
        "ended_at": 101.521,
    }
    page = render.explanation(
        {"what": "j1", "kind": "job", "message": "It ran.", "waiting": [], "records": [record]}
    )
    assert page.splitlines()[0] == "It ran."
    shown = " ".join(page.splitlines()[-1].split())
    assert shown == "j1 score rl/rollouts standby ok 20 ms 1 ms 1.5 s e1w1"


def test_explanation_of_a_caller_says_why_it_waits_and_what_it_holds() -> None:
    lease = {"worker": "e1w1", "lane": "e1l2", "node": "abc", "state": "idle", "age_s": 3.0}
    page = render.explanation(
        {"kind": "caller", "message": "m", "waiting": [WAITING], "leases": [lease]}
    )
    assert "all 1 lanes of 'gpu' are taken" in page and "e1w1" in page


def test_explanation_of_something_unknown_lists_what_there_is() -> None:
    page = render.explanation({"kind": "unknown", "message": "m", "candidates": ["a/b", "c/d"]})
    assert page == "m\n\nKnown: a/b, c/d"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0.0, "0 us"),
        (0.00085, "850 us"),
        (0.0123, "12.3 ms"),
        (1.0, "1 s"),
        (119.0, "119 s"),
        (600.0, "10 min"),
        (7200.0, "2 h"),
    ],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert render.duration(seconds) == shown
