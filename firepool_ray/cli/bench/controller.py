"""Does the controller's memory depend on the number of jobs?"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import firepool_ray as fp
from firepool_ray.cli.bench import pools, work
from firepool_ray.cli.bench.figures import Measured

FEW, MANY = 2_000, 20_000
WIDTH = 2


def measure(names: frozenset[str]) -> Iterator[Measured]:
    with (
        pools.pool(4, max_lanes=WIDTH, standbys=0),
        tempfile.TemporaryDirectory(prefix="fpb") as folder,
    ):
        _wait_and_finish(FEW, Path(folder, "warm-up"))
        few = _wait_and_finish(FEW, Path(folder, "few"))
        many = _wait_and_finish(MANY, Path(folder, "many"))
    growth = {state: many[state] / few[state] - 1 for state in few}
    detail = ", ".join(
        f"{state}: {few[state] / 2**20:.1f} MiB with {FEW:,} jobs, "
        f"{many[state] / 2**20:.1f} MiB with {MANY:,}"
        for state in few
    )
    yield Measured("controller_growth", max(growth.values()), detail)


def _wait_and_finish(jobs: int, gate: Path) -> dict[str, int]:
    """Let so many jobs wait behind blocked workers, then finish them; memory at both times."""
    options = fp.options(caller="crowd")
    blockers = [options.submit(work.hold, str(gate)) for _ in range(WIDTH)]
    crowd = [options.submit(work.nothing) for _ in range(jobs)]
    time.sleep(3)  # several heartbeats of the client
    waiting = _memory_bytes()
    gate.touch()
    for job in blockers + crowd:
        job.result()
    time.sleep(2)
    return {"waiting": waiting, "done": _memory_bytes()}


def _memory_bytes() -> int:
    return int(fp.status()["memory_bytes"])
