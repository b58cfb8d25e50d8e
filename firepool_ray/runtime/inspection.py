"""What the controller tells people, and how it ends. Called by ``controller`` only.

``describe`` joins the machine's view (``observe.situation``) with what only the runtime knows:
pids, nodes, GPU ids, clients, latencies. Its shape is the contract of ``firepool status --json``.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import time
from typing import Any

import ray

from firepool_ray.config import PoolConfig
from firepool_ray.core.model import Caller
from firepool_ray.core.state import Pool
from firepool_ray.observe import situation, warmth
from firepool_ray.observe.served import Served
from firepool_ray.runtime import lanes as ray_lanes
from firepool_ray.runtime.effects import Effects
from firepool_ray.runtime.mailbox import Mailbox
from firepool_ray.runtime.pods import Pods
from firepool_ray.runtime.protocol import JobRecord
from firepool_ray.runtime.wardens import Wardens

#: Records shown by ``explain``.
SHOWN_RECORDS = 20


def draining_nodes() -> set[str]:
    """Ids of nodes that Ray is draining. Blocks. Not in Ray's public API."""
    from ray._private.state import state

    return set(state.get_draining_nodes())


def rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def describe(
    pool: Pool,
    config: PoolConfig,
    effects: Effects,
    wardens: Wardens,
    pods: Pods,
    boxes: dict[str, Mailbox],
    served: Served,
    started: float,
) -> dict[str, Any]:
    at = time.monotonic()
    held = sum(queue.held for queue in pool.queues.values())
    return {
        "epoch": pool.epoch,
        "pid": os.getpid(),
        "node": ray.get_runtime_context().get_node_id(),
        "uptime_s": round(at - started, 3),
        "embedded": config.embedded,
        "ray_version": ray.__version__,
        "firepool_version": importlib.metadata.version("firepool-ray"),
        "memory_bytes": rss_bytes(),
        "units": {
            "reserved": sum(lane.profile.spec.unit for lane in pool.lanes.values()),
            "held": round(held, 6),
            "idle": round(pool.idle_units, 6),
            "max": situation.finite(pool.spec.max_gpus),
            "idle_cap": situation.finite(pool.idle_cap),
        },
        "lanes": [
            _with_runtime(situation.describe_lane(pool, lane, at), effects, wardens, pods)
            for lane in pool.lanes.values()
        ],
        "workers": situation.describe_workers(pool),
        "queues": [situation.describe_queue(pool, name, at) for name in sorted(pool.queues)],
        "profiles": [
            situation.describe_profile(pool.profiles[name], at) for name in sorted(pool.profiles)
        ],
        "sources": served.sources(),
        "latency_s": served.latencies(),
        "clients": [_client(pool, box, at) for box in boxes.values()],
        "waiting": _waiting(pool, pods, at),
        "kubernetes": pods.describe(),
        "let_go": warmth.describe_let_go(pool, at),
    }


def _waiting(
    pool: Pool, pods: Pods, at: float, caller: Caller | None = None
) -> list[dict[str, Any]]:
    """Who waits and why; for lanes that grow with Kubernetes' reason, where it gives one."""
    rows = situation.describe_waiting(pool, at, caller)
    for row in rows:
        if pool.profiles[row["profile"]].growing and (trouble := pods.trouble(row["profile"])):
            row["reason"] += f": {trouble}"
    return rows


def _with_runtime(
    row: dict[str, Any], effects: Effects, wardens: Wardens, pods: Pods
) -> dict[str, Any]:
    lane = effects.lanes.get(row["lane"])
    link = wardens.links.get(row["node"])
    row["gpu_ids"] = list(lane.gpu_ids) if lane is not None else []
    row["node_ip"] = link.state.node_ip if link is not None and link.state is not None else ""
    row["pod"] = _pod_of(row["node"], wardens, pods)
    if row["state"] == "growing":
        row["detail"] = pods.trouble(row["profile"])
    for worker in row["workers"]:
        handle = effects.workers.get(worker["worker"])
        worker["pid"] = handle.pid if handle is not None else 0
    return row


def _pod_of(node: str, wardens: Wardens, pods: Pods) -> str:
    link = wardens.links.get(node)
    return pods.name_at(link.state.node_ip) if link is not None and link.state is not None else ""


def _client(pool: Pool, box: Mailbox, at: float) -> dict[str, Any]:
    client = pool.clients.get(box.client)
    about = box.about()
    entries = list(client.entries.values()) if client is not None else []
    callers = [str(caller) for caller in client.callers] if client is not None else []
    return {
        "client": box.client,
        "caller": callers[-1] if callers else "",
        "pid": about.get("pid", 0),
        "node": about.get("node", ""),
        "ray_job": about.get("ray_job", ""),
        "held": len(client.leases) if client is not None else 0,
        "demand": sum(max(0, entry.unmet) for entry in entries),
        "age_s": round(at - box.since, 3),
        "parent": client.parent.worker if client is not None and client.parent else "",
        "blocked": client.blocked if client is not None else False,
    }


async def explain(
    what: str, pool: Pool, effects: Effects, wardens: Wardens, pods: Pods
) -> dict[str, Any]:
    """Why a caller waits, or where a job's time went."""
    at = time.monotonic()
    records = await _records(wardens, job=what)
    if records:
        caller = records[-1].caller
        jobs = sorted({record.job for record in records})
        message = _about_job(records[-1]) if len(jobs) == 1 else f"{len(jobs)} jobs begin so"
        kind = "job"
    else:
        known = sorted({str(c) for c in pool.callers})
        matching = [c for c in known if c == what or c.partition("/")[2] == what]
        if len(matching) != 1:
            return {
                "what": what,
                "kind": "unknown",
                "message": f"no job or caller {what!r} is known; see the candidates",
                "waiting": [],
                "leases": [],
                "let_go": [],
                "records": [],
                "candidates": matching or known,
            }
        caller, kind = matching[0], "caller"
        records = await _records(wardens, caller=caller)
        message = ""
    queue, _, name = caller.partition("/")
    waiting = _waiting(pool, pods, at, Caller(queue, name))
    leases = [
        {
            "worker": worker.id,
            "lane": worker.lane.id,
            "node": worker.lane.node,
            "pod": _pod_of(worker.lane.node, wardens, pods),
            "state": situation.worker_state(worker),
            "age_s": round(at - worker.since, 3),
            **warmth.describe_warmth(pool, worker, at),
        }
        for worker in pool.workers.values()
        if situation.caller_text(worker) == caller and worker.state != "leaving"
    ]
    return {
        "what": what,
        "kind": kind,
        "message": message or _about_caller(caller, waiting, leases),
        "waiting": waiting,
        "leases": leases,
        "let_go": warmth.describe_let_go(pool, at, Caller(queue, name)),
        "records": [record._asdict() for record in records[-SHOWN_RECORDS:]],
        "candidates": [],
    }


def _about_job(record: JobRecord) -> str:
    waited = max(0.0, record.started_at - record.submitted_at)
    ran = max(0.0, record.ended_at - record.started_at)
    return (
        f"job {record.job} ({record.name}) got worker {record.worker} ({record.source}), started "
        f"{waited * 1000:.1f} ms after submit, ran {ran * 1000:.1f} ms: {record.outcome}"
    )


def _about_caller(caller: str, waiting: list[dict[str, Any]], leases: list[dict[str, Any]]) -> str:
    if waiting:
        count = sum(row["count"] for row in waiting)
        return f"{caller} waits for {count} workers: {waiting[0]['reason']}"
    return f"{caller} waits for nothing and holds {len(leases)} workers"


async def _records(wardens: Wardens, job: str = "", caller: str = "") -> list[JobRecord]:
    """Matching records of all wardens that answer, oldest first."""
    answers = await asyncio.gather(
        *(
            asyncio.wait_for(link.handle.records.remote(job, caller, 100), 5.0)
            for link in wardens.links.values()
        ),
        return_exceptions=True,
    )
    found = [record for answer in answers if isinstance(answer, list) for record in answer]
    return sorted(found, key=lambda record: record.submitted_at)


async def remove_everything(effects: Effects, wardens: Wardens) -> None:
    """End of the pool: workers with whatever they left, lanes, wardens, in this order."""
    await asyncio.gather(*(effects.end_worker(name) for name in list(effects.workers)))
    await asyncio.gather(
        *(ray_lanes.remove(effects.lanes.pop(lane).group) for lane in list(effects.lanes))
    )
    for node in list(wardens.links):
        await wardens.dismiss(node)
