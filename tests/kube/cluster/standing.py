"""A pool that stands on the test cluster, brought up as a platform engineer would."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.kube.bed import Bed

FIREPOOL = Path(sys.executable).with_name("firepool")
LOAD = Path(__file__).with_name("load.py")
NAME = "pool"

#: Small, and quick to come and go: what a test needs of a RayCluster.
SETTINGS: dict[str, Any] = {
    "profiles": {
        "gpu": {"gpus": 1, "cpus": 1, "max_lanes": 4, "keep_alive": "fixed:20", "lane_keep_s": 20}
    },
    "kubernetes": {
        "name": NAME,
        "idle_timeout_s": 10,
        "drain_s": 10,
        "run_as_user": 0,
        "head": {"cpus": 1, "memory": "2Gi"},
        "drivers": {"max_pods": 0},
        "ray_start_params": {"object-store-memory": "200000000"},
    },
}


def settings(**changes: Any) -> dict[str, Any]:
    """``SETTINGS`` with keys replaced: ``profiles`` whole, ``gpu`` and ``kubernetes`` in part."""
    made = copy.deepcopy(SETTINGS)
    made["profiles"]["gpu"].update(changes.pop("gpu", {}))
    made["kubernetes"].update(changes.pop("kubernetes", {}))
    made.update(changes)
    return made


class Load:
    """``load.py`` in a pod, the head's unless another is named, or outside of all pods."""

    def __init__(
        self, pool: StandingPool, asked: dict[str, Any], pod: str = "", *, outside: bool = False
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.error = ""
        self._argv = [sys.executable, str(LOAD), json.dumps(asked)]
        self._pool, self._pod = pool, "" if outside else pod or pool.head()
        self._limit_s = asked["seconds"] + asked.get("patience_s", 120.0) + 60
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        limit_s = self._limit_s
        if self._pod:
            done = self._pool.bed.exec(self._pod, self._argv, timeout_s=limit_s)
        else:
            done = subprocess.run(
                self._argv, capture_output=True, text=True, timeout=limit_s, check=False
            )
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                self.rows.append(json.loads(line))
        if done.returncode != 0:
            self.error = f"exit {done.returncode}: {done.stderr[-2000:]}"

    def finish(self) -> list[dict[str, Any]]:
        """All rows, once it has ended; each job it submitted has ended exactly once."""
        self._thread.join(self._limit_s + 10)
        assert not self._thread.is_alive()
        assert not self.error, self.error
        *jobs, last = self.rows
        assert last == {"done": len(jobs)}
        assert len({row["job"] for row in jobs}) == len(jobs)
        return jobs


class StandingPool:
    def __init__(self, bed: Bed, folder: Path, config: dict[str, Any]) -> None:
        self.bed = bed
        self.file = folder / "pool.yaml"
        self.file.write_text(yaml.safe_dump(config))

    def firepool(self, *argv: str, timeout_s: float = 120.0, code: int = 0) -> str:
        """The command line where a person sits, with the cluster's kubeconfig."""
        return self._firepool(argv, timeout_s, code).stdout

    def told(self, *argv: str, timeout_s: float = 200.0) -> str:
        """What such a command says while it works."""
        return self._firepool(argv, timeout_s, 0).stderr

    def _firepool(
        self, argv: Sequence[str], timeout_s: float, code: int
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [FIREPOOL, *argv],
            env={**os.environ, "KUBECONFIG": str(self.bed.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def up(self) -> None:
        self.firepool("kube", "up", "-f", str(self.file), "--timeout", "180", timeout_s=200)

    def head(self) -> str:
        return str(self.bed.wait_head(NAME).metadata.name)

    def system(self) -> str:
        """The pod of the controller."""
        (pod,) = self.bed.pods(f"ray.io/cluster={NAME},ray.io/group=system")
        return str(pod.metadata.name)

    def status(self) -> dict[str, Any]:
        """As from any pod of the cluster."""
        done = self.bed.exec(self.head(), ["firepool", "status", "--json"], timeout_s=60)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def explain(self, job_or_caller: str) -> dict[str, Any]:
        done = self.bed.exec(
            self.head(), ["firepool", "explain", job_or_caller, "--json"], timeout_s=60
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def load(self, *, pod: str = "", **asked: Any) -> Load:
        return Load(self, asked, pod)

    def load_outside(self, **asked: Any) -> Load:
        """By Ray Client, as a program that is in no pod of the cluster would."""
        address = f"ray://{self.bed.head_address(NAME)}:10001"
        return Load(self, {"address": address, **asked}, outside=True)

    def answers(self) -> bool:
        """Whether there is a controller on this head."""
        return self.bed.exec(self.head(), ["firepool", "status"], timeout_s=30).returncode == 0

    def jobs(self, *, pod: str = "", **asked: Any) -> list[dict[str, Any]]:
        return self.load(pod=pod, **{"seconds": 0, "job_s": 0.1, **asked}).finish()

    def worker_pods(self) -> list[str]:
        """Pods that carry lanes."""
        return [
            pod.metadata.name
            for pod in self.bed.pods(f"ray.io/cluster={NAME},ray.io/group=gpu")
            if pod.metadata.deletion_timestamp is None
        ]

    def busy_pod(self) -> str:
        """A pod on which a job runs now."""

        def find() -> str:
            for lane in self.status()["lanes"]:
                if lane["pod"] and any(w["state"] == "busy" for w in lane["workers"]):
                    return str(lane["pod"])
            return ""

        return self.bed.wait_for(find, 60, "busy pod")

    def busy_workers(self, profile: str) -> int:
        lanes = [lane for lane in self.status()["lanes"] if lane["profile"] == profile]
        return sum(worker["state"] == "busy" for lane in lanes for worker in lane["workers"])

    def settle(self) -> None:
        """Until the pool is whole again: as many lanes as it wants, none on its way."""

        def settled() -> bool:
            lanes = self.status()["lanes"]
            return all(lane["state"] == "ready" for lane in lanes)

        self.bed.wait_for(settled, 60, "settled pool")


@contextmanager
def standing(bed: Bed, folder: Path, config: dict[str, Any]) -> Iterator[StandingPool]:
    pool = StandingPool(bed, folder, config)
    pool.up()
    yield pool
    pool.firepool("kube", "down", "-f", str(pool.file))


def since(moment: float) -> float:
    return time.monotonic() - moment
