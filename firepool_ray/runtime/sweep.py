"""Ending a worker for good: its tree, what escaped from it, its device and its GPU memory.

Called by the warden in a thread, since it waits. Blocks; changes no lease word.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from firepool_ray.runtime import device, gpu
from firepool_ray.runtime.processes import Process, find_marked, kill_tree, look

_POLL_S = 0.005


def sweep(
    worker: str,
    pid: int,
    start: int,
    word_path: str,
    *,
    known: Collection[tuple[int, int]],
    spare: Collection[int],
    device_lock: str,
    gpu_ids: Collection[str],
    deadline: float,
) -> str:
    """End everything of a revoked worker; "" once it is gone, else what is left and why.

    ``known`` are (pid, start) seen below the worker earlier; ``spare`` must not be touched;
    ``device_lock`` is "" for a worker that never was active. ``deadline`` is CLOCK_MONOTONIC.
    """
    left = kill_tree(pid, start, _until(deadline), known)
    while not left:
        escaped = find_marked(word_path, start, spare)
        if not escaped:
            break
        left = [
            stuck
            for process in escaped
            for stuck in kill_tree(process.pid, process.start, _until(deadline))
        ]
        if _until(deadline) <= 0:
            left = left or escaped
    if left:
        return f"processes of worker {worker} do not end: " + ", ".join(map(_describe, left))
    if device_lock and not device.wait_left(device_lock, worker, deadline):
        return f"{device_lock} is still locked, though all processes of {worker} are gone"
    if gpu_ids and device_lock:
        return _wait_for_memory({pid} | {p for p, _ in known}, gpu_ids, deadline)
    return ""


def _until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _describe(process: Process) -> str:
    now = look(process.pid)
    return f"{process.pid} (state {now.state if now else '?'})"


def _wait_for_memory(pids: Collection[int], gpu_ids: Collection[str], deadline: float) -> str:
    """The driver frees a dead process's memory a little after the process is gone."""
    before: list[int] | None = None
    while True:
        uses = gpu.uses(gpu_ids)
        holders = {pid for use in uses for pid in use.pids} & set(pids)
        used = [use.used_bytes for use in uses]
        falling = before is not None and any(
            now < then for now, then in zip(used, before, strict=False)
        )
        if not uses or (not holders and before is not None and not falling):
            return ""
        if _until(deadline) <= 0:
            return f"GPU {', '.join(gpu_ids)} still holds memory of processes {sorted(holders)}"
        before = used
        time.sleep(4 * _POLL_S)
