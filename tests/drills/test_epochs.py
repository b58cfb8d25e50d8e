"""Drill 3: a controller is stopped after a promotion, a successor starts, the old one continues.

The successor has another name, since Ray lets nobody start a second actor of the same one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, placement_group_table

import firepool_ray as fp
from firepool_ray.config import PoolConfig
from firepool_ray.core.model import Caller, Fence
from firepool_ray.errors import StaleEpoch
from firepool_ray.runtime import pool as pools
from firepool_ray.runtime import words
from firepool_ray.runtime.protocol import NAMESPACE, Promotion, Topology, warden_actor_name
from tests import jobs
from tests.conftest import KEPT, PATIENCE_S, eventually, is_gone, pool_of

SUCCESSOR = "firepool-controller-2"
SETTINGS = {
    "profiles": {
        "gpu": {
            **KEPT,
            "gpus": 1,
            "cpus": 0,
            "min_lanes": 1,
            "max_lanes": 2,
        }
    },
    "window_s": 0.5,
}


class Watch(threading.Thread):
    """Reads every lease word of the node all the time: who is active on which device?"""

    def __init__(self, folder: str) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.stopped = threading.Event()
        self.readings = 0
        self.crowded: list[str] = []

    def run(self) -> None:
        while not self.stopped.wait(0.002):
            active: dict[str, list[str]] = defaultdict(list)
            for worker, (device, state) in self.look().items():
                if state in ("idle", "busy", "draining"):
                    active[device].append(f"{worker} {state}")
            self.readings += 1
            self.crowded += [f"{d}: {ws}" for d, ws in active.items() if len(ws) > 1]

    def look(self) -> dict[str, tuple[str, str]]:
        """Device and state of every worker whose process lives."""
        found = {}
        for name in os.listdir(self.folder):
            if name.endswith(".word"):
                worker = name.removesuffix(".word")
                try:
                    spec, _ = words.read_spec(self.folder, worker)
                    file = words.WordFile.open(words.word_path(self.folder, worker))
                except (OSError, ValueError, words.DamagedWord):
                    continue  # it comes or goes just now
                word = file.read()
                file.close()
                if not is_gone(word.pid):
                    found[worker] = (spec.device, word.state)
        return found


@ray.remote(num_cpus=0)
class Stray:
    """What a superseded controller may still have created: an actor under its old epoch."""


def _words_dir() -> str:
    context = ray.get_runtime_context()
    base = os.path.join(context.get_temp_dir(), context.get_session_name())
    return words.words_dir(base, context.get_node_id())


def _workers(controller: Any) -> list[dict[str, Any]]:
    lanes = ray.get(controller.describe.remote())["lanes"]
    return [worker for lane in lanes for worker in lane["workers"]]


def _in_state(controller: Any, state: str) -> list[dict[str, Any]]:
    return [worker for worker in _workers(controller) if worker["state"] == state]


def _groups() -> dict[str, str]:
    return {
        row["name"]: row["state"]
        for row in placement_group_table().values()
        if row["state"] != "REMOVED"
    }


def _names() -> list[str]:
    rows = ray.util.list_named_actors(all_namespaces=True)
    return [row["name"] for row in rows if row["namespace"] == NAMESPACE]


def _refused(call: Any) -> None:
    with pytest.raises(StaleEpoch):
        ray.get(call)


def test_the_old_controller_is_refused_everything_and_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool_of(SETTINGS, num_cpus=2, num_gpus=2) as old:
        (standby,) = eventually(lambda: _in_state(old, "standby"))
        watch = Watch(_words_dir())
        watch.start()
        old_epoch, old_pid = ray.get(old.ping.remote())
        marks = tmp_path / "marks"

        # A promotion is under way when the controller stops; it succeeds, the grant stays inside.
        os.kill(standby["pid"], signal.SIGSTOP)
        job = fp.options(caller="first").submit(jobs.mark, str(marks))
        eventually(lambda: _in_state(old, "promoting"))
        os.kill(old_pid, signal.SIGSTOP)
        os.kill(standby["pid"], signal.SIGCONT)
        eventually(lambda: watch.look()[standby["worker"]][1] == "idle")
        # This demand reaches the old controller as soon as it continues.
        other = fp.options(caller="second").submit(jobs.pid)
        assert not marks.exists()

        successor = pools.start_pool(PoolConfig.from_dict(SETTINGS), name=SUCCESSOR)
        monkeypatch.setattr(pools, "CONTROLLER_NAME", SUCCESSOR)
        try:
            epoch, _ = ray.get(successor.ping.remote())
            assert epoch > old_epoch
            assert standby["worker"] in [worker["worker"] for worker in _workers(successor)]
            _assert_old_orders_are_refused(standby["worker"], old_epoch)
            stray = _leave_strays(old_epoch)

            os.kill(old_pid, signal.SIGCONT)
            eventually(lambda: is_gone(old_pid))
            assert job.result(timeout_s=PATIENCE_S) is None
            assert other.result(timeout_s=PATIENCE_S) > 0
            assert marks.read_text().split() == ["x"], "it ran more than once"

            kept = {worker["worker"] for worker in _workers(successor)}
            eventually(lambda: not _strays(old_epoch, kept | {standby["worker"]}, successor))
            eventually(lambda: _has_ended(stray))
            with pytest.raises(ray.exceptions.ActorDiedError):
                ray.get(old.ping.remote())
            for caller in ("first", "second", "third"):
                again = fp.options(caller=caller).submit(jobs.pid)
                assert again.result(timeout_s=PATIENCE_S) > 0
            watch.stopped.set()
            watch.join()
            assert watch.readings > 100
            assert watch.crowded == [], "two active workers on one device"
        finally:
            if not is_gone(old_pid):
                os.kill(old_pid, signal.SIGCONT)
            fp.shutdown()
            pools.stop_pool(successor)


def _assert_old_orders_are_refused(worker: str, epoch: int) -> None:
    warden = ray.get_actor(
        warden_actor_name(ray.get_runtime_context().get_node_id()), namespace=NAMESPACE
    )
    fence = Fence(epoch, 10_000)
    _refused(warden.hello.remote(epoch))
    _refused(warden.revoke.remote(epoch, worker, fence, "drain"))
    _refused(warden.regrant.remote(epoch, worker, fence, Fence(epoch, 10_001), "client"))
    _refused(warden.retire.remote(epoch, worker))
    _refused(warden.watch.remote(epoch, 0))
    topology = Topology("lane", "node", "", (), 0.0)
    promotion = Promotion(epoch, fence, Caller("default", "x"), "", "client", ("0",), topology)
    for name in _names():
        if name.startswith("firepool/gpu/"):
            _refused(ray.get_actor(name, namespace=NAMESPACE).promote.remote(promotion))


def _leave_strays(epoch: int) -> Any:
    """A lane and a worker as the old controller would name them, created after the adoption."""
    placement_group([{"CPU": 0.01}], name=f"firepool/gpu/e{epoch}l999", lifetime="detached")
    actor: Any = Stray
    return actor.options(
        name=f"firepool/gpu/e{epoch}l999/0/e{epoch}w999", namespace=NAMESPACE, lifetime="detached"
    ).remote()


def _strays(epoch: int, kept: set[str], successor: Any) -> list[str]:
    """Lanes and workers under the old epoch that nobody has taken over."""
    described = ray.get(successor.describe.remote())["lanes"]
    lanes = {f"firepool/gpu/{lane['lane']}" for lane in described}
    kept = kept | {worker["worker"] for worker in _workers(successor)}
    return [
        *(name for name in _groups() if f"/e{epoch}l" in name and name not in lanes),
        *(name for name in _names() if f"/e{epoch}w" in name and name.split("/")[-1] not in kept),
    ]


def _has_ended(actor: Any) -> bool:
    try:
        ray.get(actor.__ray_ready__.remote(), timeout=5)
    except ray.exceptions.RayActorError:
        return True
    return False
