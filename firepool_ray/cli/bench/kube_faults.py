"""Pods that are deleted, killed, and the head lost, while callers work all the time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

from firepool_ray.cli.bench.figures import Measured
from firepool_ray.cli.bench.kube_site import PROFILE, Row, Site
from firepool_ray.cli.bench.profiling import median, percentile
from firepool_ray.errors import PoolUnavailable

LANES, CALLERS = 6, 3
QUIET_S = 60.0
DELETIONS, KILLS = 50, 20
#: Between two deletions at least; the next one waits until all pods stand again.
APART_S = 5.0
BACK_S = 120.0
HEAD_AFTER_S, HEAD_S = 15.0, 100.0
#: A new caller so often while the head is lost: the others have warm workers and need no grant.
FRESH_S = 1.0


# ------------------------------------------------------------ on a pool that stands


def undisturbed(site: Site) -> list[float]:
    """Starts of a run in which nothing happens. Seconds."""
    _whole(site)
    rows = site.drive("load", timeout_s=QUIET_S + 200, seconds=QUIET_S, callers=CALLERS)
    return _starts(rows)


def deletions(site: Site, quiet: Sequence[float]) -> Iterator[Measured]:
    """An administrator deletes pods, one after the other, as in a rolling upgrade of nodes."""
    job, gone = _loaded(site), 0
    draw = random.Random(DELETIONS)
    began = time.monotonic()
    while gone < DELETIONS:
        _whole(site)
        site.delete(draw.choice(site.lane_pods()).name)
        gone += 1
        time.sleep(APART_S)
    took_s = time.monotonic() - began
    rows = _stop(site, job)
    jobs = _jobs(rows)
    failed = [row for row in jobs if row["outcome"] != "ok"]
    yield Measured(
        "kube_deletions_failed",
        len(failed),
        f"of {len(jobs)} in {took_s:.0f} s; {_outcomes(jobs)}{_first_words(failed)}",
    )
    starts = _starts(rows)
    yield Measured(
        "kube_deletions_p99",
        percentile(starts, 99) / percentile(quiet, 99),
        f"{_tail(starts)} with, {_tail(quiet)} without; {_sources(jobs)}",
    )


def kills(site: Site) -> Iterator[Measured]:
    """Pods end without warning. Capacity is back when as many lanes can be used as before."""
    job = _loaded(site)
    draw = random.Random(KILLS)
    killed: list[float] = []
    for _ in range(KILLS):
        _whole(site)
        killed.append(time.time())
        site.delete(draw.choice(site.lane_pods()).name, grace_s=0)
        time.sleep(APART_S)
        _usable(site, job)
    rows = _stop(site, job)
    jobs = _jobs(rows)
    unclear = len(jobs) - len({row["job"] for row in jobs})
    unclear += sum(row["outcome"] not in ("ok", "WorkerLost") for row in jobs)
    yield Measured("kube_kills_unclear", unclear, f"of {len(jobs)}; {_outcomes(jobs)}")
    back = back_after(killed, [(r["at"], r["ready"]) for r in rows if "ready" in r], LANES)
    if len(back) < KILLS:
        raise PoolUnavailable(f"only {len(back)} of {KILLS} kills were seen in the pool's lanes")
    fresh = by_hand(site, 3)
    yield Measured(
        "kube_kills_back",
        max(back) / median(fresh),
        f"longest {max(back):.1f} s, p50 {median(back):.1f} s of {len(back)}; "
        f"Ray pod p50 {median(fresh):.1f} s",
    )


def head(site: Site) -> Iterator[Measured]:
    job = _loaded(site, fresh_s=FRESH_S)
    time.sleep(HEAD_AFTER_S)
    lost_at = time.time()
    site.delete(site.head_pod(), grace_s=0)
    time.sleep(HEAD_S)
    rows = _stop(site, job)
    jobs = _jobs(rows)
    lost = [row for row in jobs if row["outcome"] != "ok"]
    during = [row for row in jobs if lost_at <= row["at"] <= lost_at + HEAD_S]
    yield Measured(
        "kube_head_lost", len(lost), f"of {len(jobs)}, {len(during)} after it; {_outcomes(jobs)}"
    )
    grants = [
        row["at"] + row["start_s"] - lost_at
        for row in during
        if row["outcome"] == "ok" and row["source"] != "warm"
    ]
    if not grants:
        raise PoolUnavailable("no new grant was asked for after the head was lost")
    longest = max(row["start_s"] for row in during if row["outcome"] == "ok")
    detail = f"warm starts went on; longest start meanwhile {longest:.1f} s"
    yield Measured("kube_head_grant", min(grants), detail)


def by_hand(site: Site, rounds: int) -> list[float]:
    """Starts of a pod, a placement group and an actor, asked of plain Ray. Seconds.

    On the pool's own group of pods, which has room for one pod more.
    """
    profile = site.pool.profiles[PROFILE]
    asked: Row = {"profile": PROFILE, "gpus": profile.gpus, "cpus": profile.cpus}
    rows = site.drive("by_hand", timeout_s=400.0, rounds=rounds, patience_s=90.0, **asked)
    return [row["by_hand_s"] for row in rows if "by_hand_s" in row]


# ------------------------------------------------------------ arithmetic


def delays(
    changed: Sequence[tuple[float, float]], seen: Sequence[tuple[float, float]]
) -> list[float]:
    """Per change (when, value): how long until it was seen (when, value).

    Changes before the first or after the last look count for nothing; one that is never seen
    counts until the last look.
    """
    began, ended = seen[0][0], seen[-1][0]
    found = []
    for at, value in changed:
        if began < at < ended:
            later = [when - at for when, what in seen if what == value and when >= at]
            found.append(min(later, default=ended - at))
    return found


def back_after(
    killed: Sequence[float], lanes: Sequence[tuple[float, int]], whole: int
) -> list[float]:
    """Per kill: how long until as many lanes could be used as before. Seconds.

    ``lanes`` are changes, (when, usable). Until the loss is noticed the pool still looks whole, so
    the time counts from the kill to the first moment after a drop at which it is whole again.
    """
    found = []
    for number, at in enumerate(killed):
        until = killed[number + 1] if number + 1 < len(killed) else float("inf")
        after = [(when, usable) for when, usable in lanes if at <= when < until]
        dropped = next((when for when, usable in after if usable < whole), None)
        if dropped is None:
            continue  # the pool had a lane too many
        back = [when for when, usable in after if when > dropped and usable >= whole]
        found.append(min(back, default=BACK_S + at) - at)
    return found


def _loaded(site: Site, **more: float) -> str:
    _whole(site)
    job = site.begin("load", seconds=3600.0, callers=CALLERS, **more)
    site.await_running(job)
    time.sleep(5.0)
    return job


def _stop(site: Site, job: str) -> list[Row]:
    return site.stop(job, timeout_s=400.0)


def _whole(site: Site) -> None:
    deadline = time.monotonic() + BACK_S
    while sum(pod.ready for pod in site.lane_pods()) < LANES:
        if time.monotonic() > deadline:
            raise PoolUnavailable(f"after {BACK_S:g} s there are not {LANES} ready pods")
        time.sleep(0.2)


def _usable(site: Site, job: str) -> None:
    """Until as many lanes can be used as before: a pod is ready before its lane is."""
    deadline = time.monotonic() + BACK_S
    while (usable := _last_ready(site.told(job))) < LANES:
        if time.monotonic() > deadline:
            raise PoolUnavailable(f"after {BACK_S:g} s {usable} of {LANES} lanes can be used")
        time.sleep(0.5)


def _last_ready(rows: Sequence[Row]) -> int:
    return next((int(row["ready"]) for row in reversed(rows) if "ready" in row), 0)


def _jobs(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if "job" in row]


def _starts(rows: Sequence[Row]) -> list[float]:
    return [row["start_s"] for row in _jobs(rows) if row["start_s"] is not None]


def _tail(starts: Sequence[float]) -> str:
    p50, p99 = percentile(starts, 50), percentile(starts, 99)
    return f"p50 {1e3 * p50:.1f} ms, p99 {1e3 * p99:.0f} ms, longest {max(starts):.2f} s"


def _outcomes(jobs: Sequence[Row]) -> str:
    return _counted([row["outcome"] for row in jobs])


def _first_words(failed: Sequence[Row]) -> str:
    return f"; the first: {failed[0]['why']}" if failed else ""


def _sources(jobs: Sequence[Row]) -> str:
    return "starts: " + _counted([str(row["source"]) for row in jobs])


def _counted(words: Sequence[str]) -> str:
    return ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words)))
