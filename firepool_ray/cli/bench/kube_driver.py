"""The part of ``firepool bench --kube`` that runs inside the cluster, as a Ray job.

    python -m firepool_ray.cli.bench.kube_driver TASK '{"argument": ...}'

Prints one JSON object per line; the last one has the key "done".
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import firepool_ray as fp
from firepool_ray.cli.bench import kube_plan, pools, work
from firepool_ray.errors import FirepoolError
from firepool_ray.runtime import baselines

#: How often the pool is looked at while it is disturbed.
LOOK_S = 0.1
#: Sixteen workers and as many standbys start on a machine with two cores.
SETTLE_S = 240.0
_printing = threading.Lock()


def tell(**row: Any) -> None:
    with _printing:
        print(json.dumps(row), flush=True)


# ------------------------------------------------------------ loops


def agents(arguments: dict[str, Any]) -> None:
    """Each agent is a caller of its own."""
    plan = kube_plan.agents(arguments["count"], arguments["jobs"])
    _wait_until("idle lanes with standbys", _ready(arguments["lanes"]))

    def run(number: int) -> None:
        options = fp.options(caller=f"agent{number}")
        began = time.monotonic()
        for step in plan.steps[number]:
            job = options.submit(work.nap, step.job_s)
            job.result()
            info = job.info()
            tell(start_s=info.start_s, source=info.source)
            time.sleep(step.pause_s)
        tell(loop_s=time.monotonic() - began)
        options.closing()

    _together(run, len(plan.steps))


def rollouts(arguments: dict[str, Any]) -> None:
    plan = kube_plan.rollouts(arguments["bursts"], arguments["jobs"])
    _wait_until("idle lanes with standbys", _ready(arguments["lanes"]))
    options = fp.options(caller="trainer")
    began = time.monotonic()
    for burst in plan.bursts:
        jobs = [options.submit(work.nap, seconds) for seconds in burst]
        for job in jobs:
            job.result()
            info = job.info()
            tell(start_s=info.start_s, source=info.source)
        time.sleep(plan.update_s)
    tell(loop_s=time.monotonic() - began)
    options.closing()


# ------------------------------------------------------------ single starts


def promotions(arguments: dict[str, Any]) -> None:
    """Each round a new caller takes a standby on a free device, and is gone again."""
    for number in range(arguments["rounds"]):
        _wait_until("idle lanes with standbys", _ready(arguments["lanes"]))
        options = fp.options(caller=f"new{number}")
        _one(options)
        options.closing()


def handovers(arguments: dict[str, Any]) -> None:
    """Each round a new caller, while idle workers of others hold every device."""
    lanes = arguments["lanes"]
    _wait_until("idle lanes with standbys", _ready(lanes))
    for number in range(lanes):
        fp.options(caller=f"holder{number}").submit(work.nap, 0.0).result()
    for number in range(arguments["rounds"]):
        _wait_until(
            "an idle worker and a standby on every lane",
            lambda d: (
                pools.still(d)
                and pools.count(d, "idle") == lanes
                and pools.count(d, "standby") == lanes
            ),
        )
        _one(fp.options(caller=f"taker{number}"))
    for kind, count in (("holder", lanes), ("taker", arguments["rounds"])):
        for number in range(count):
            fp.options(caller=f"{kind}{number}").closing()


def first(arguments: dict[str, Any]) -> None:
    """The first job on a pool without pods, and the same capacity made by hand, by turns."""
    labels = {"firepool/profile": arguments["profile"]}

    def ours() -> None:
        options = fp.options(caller="first")
        _one(options)
        options.closing()

    def theirs() -> None:
        tell(by_hand_s=baselines.fresh_lane_s(arguments["gpus"], arguments["cpus"], labels))

    for number in range(arguments["rounds"]):
        for run in (theirs, ours) if number % 2 else (ours, theirs):
            _no_nodes(labels, arguments["patience_s"])
            run()


def by_hand(arguments: dict[str, Any]) -> None:
    """Capacity like a lane's, made by hand beside the pool's: each time with a pod of its own."""
    labels = {"firepool/profile": arguments["profile"]}
    before = baselines.nodes_with(labels)
    for _ in range(arguments["rounds"]):
        tell(by_hand_s=baselines.fresh_lane_s(arguments["gpus"], arguments["cpus"], labels))
        _no_nodes(labels, arguments["patience_s"], beyond=before)


def _one(options: Any) -> None:
    job = options.submit(work.nap, 0.0)
    job.result()
    info = job.info()
    tell(start_s=info.start_s, source=info.source)


def _no_nodes(labels: dict[str, str], patience_s: float, beyond: int = 0) -> None:
    deadline = time.monotonic() + patience_s
    while baselines.nodes_with(labels) > beyond:
        if time.monotonic() > deadline:
            raise TimeoutError(f"nodes with {labels} are still there after {patience_s:g} s")
        time.sleep(0.5)


# ------------------------------------------------------------ under faults


def load(arguments: dict[str, Any]) -> None:
    """Callers that work until they are told to stop; and what the pool's lanes do meanwhile.

    They keep their warm workers. With ``fresh_s`` ever new callers ask beside them, so often.
    """
    until = time.monotonic() + arguments["seconds"]
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    watching = threading.Thread(target=_watch_lanes, args=(over,), daemon=True)
    watching.start()
    plan = kube_plan.agents(arguments["callers"], jobs=1000)

    def run(number: int) -> None:
        options = fp.options(caller=f"caller{number}")
        for step in plan.steps[number]:
            if over.is_set() or time.monotonic() > until:
                return
            _told_job(options, step.job_s)
            time.sleep(step.pause_s / 5)

    def run_fresh() -> None:
        for number in itertools.count():
            if over.wait(arguments["fresh_s"]) or time.monotonic() > until:
                return
            options = fp.options(caller=f"new{number}")
            _told_job(options, 0.2)
            options.closing()

    others = [run_fresh] if arguments.get("fresh_s") else []
    threads = [threading.Thread(target=other) for other in others]
    for thread in threads:
        thread.start()
    _together(run, arguments["callers"])
    over.set()
    for thread in threads:
        thread.join()
    watching.join()


def _told_job(options: Any, seconds: float) -> None:
    submitted = time.time()
    job = options.submit(work.nap, seconds)
    outcome, why = "ok", ""
    try:
        job.result(timeout_s=300.0)
    except FirepoolError as error:
        outcome, why = type(error).__name__, str(error)
    info = job.info()
    tell(
        **{"job": job.id, "at": submitted, "outcome": outcome, "why": why},
        **{"start_s": info.start_s, "source": info.source},
    )


def _watch_lanes(over: threading.Event) -> None:
    """A row whenever another number of lanes can be used."""
    last = None
    while not over.wait(LOOK_S):
        try:
            lanes = fp.status()["lanes"]
        except FirepoolError:
            continue
        ready = sum(lane["state"] == "ready" for lane in lanes)
        if ready != last:
            tell(at=time.time(), ready=ready)
            last = ready


def quota(arguments: dict[str, Any]) -> None:
    """A row whenever the quota of a queue is another."""
    last, until = None, time.monotonic() + arguments["seconds"]
    while time.monotonic() < until:
        row = next(q for q in fp.status()["queues"] if q["queue"] == arguments["queue"])
        if row["quota"] != last:
            tell(at=time.time(), quota=row["quota"], source=(row["signal"] or {}).get("source", ""))
            last = row["quota"]
        time.sleep(0.05)


def idle(arguments: dict[str, Any]) -> None:
    """What a pool that nobody uses asks of the API server."""
    _wait_until("idle lanes with standbys", _ready(arguments["lanes"]))
    time.sleep(arguments["settle_s"])
    began, before = time.monotonic(), fp.status()["kubernetes"]["requests"]
    time.sleep(arguments["seconds"])
    asked = fp.status()["kubernetes"]["requests"] - before
    pods = [pod for pod in fp.status()["kubernetes"]["pods"] if pod["gpus"]]
    tell(requests=asked, seconds=time.monotonic() - began, pods=len(pods))


# ------------------------------------------------------------ helpers


def _ready(lanes: int) -> Callable[[dict[str, Any]], bool]:
    """So many lanes, each with a standby, and nothing under way."""

    def holds(described: dict[str, Any]) -> bool:
        return (
            pools.still(described)
            and len(described["lanes"]) >= lanes
            and pools.count(described, "standby") >= lanes
            and pools.count(described, "idle") == 0
        )

    return holds


def _wait_until(what: str, holds: Callable[[dict[str, Any]], bool]) -> None:
    pools.wait_until(what, holds, timeout_s=SETTLE_S)


def _together(run: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


TASKS: dict[str, Callable[[dict[str, Any]], None]] = {
    task.__name__: task
    for task in (agents, rollouts, promotions, handovers, first, by_hand, load, quota, idle)
}


def main(task: str, arguments: str) -> None:
    baselines.join_cluster()
    TASKS[task](json.loads(arguments))
    sources = Counter(fp.status()["sources"])
    tell(done=True, sources=dict(sources))


if __name__ == "__main__":
    main(*sys.argv[1:])
