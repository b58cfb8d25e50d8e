"""Two pods of different images, one device by a ResourceClaim: never two workers on it at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.bed import Bed
from tests.kube.bed.devices import DRIVER
from tests.kube.cluster.standing import NAME, StandingPool, settings, standing

NODES = "cpu-a:cpu=8,mem=32;gpu-a:cpu=8,mem=32,dra=1"
CLAIM = "shared"
LOCK = f"{NAME}-{CLAIM}-lock"
#: Until a pod that nobody can reach any more is given up by everyone, with room for a slow machine.
FENCED_S = 150.0
#: Between two jobs that write a beat every 0.1 s.
BEAT_S = 0.1


@pytest.fixture(scope="module")
def pool(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingPool]:
    bed.apply([volume(bed.directory / "lock")])
    config = settings(kubernetes={"device_class": DRIVER})
    lane = {"gpus": 1, "cpus": 1, "min_lanes": 1, "max_lanes": 1, "keep_alive": "fixed:60"}
    config["profiles"] = {
        name: {**lane, "pod": {"image": f"image-{name}", "sharing": f"dra:{CLAIM}"}}
        for name in "ab"
    }
    with standing(bed, tmp_path_factory.mktemp("pool"), config) as pool:
        yield pool


def volume(folder: Path) -> dict[str, Any]:
    """What a storage class would make for the claim of the lock."""
    folder.mkdir(mode=0o777)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": LOCK},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": "default", "name": LOCK},
            "storageClassName": "",
        },
    }


def ask(pool: StandingPool, profile: str, caller: str, **asked: Any) -> Any:
    options = {"caller": caller, "profile": profile}
    return pool.load(seconds=0, options=options, pod=pool.system(), **asked)


def workers(pool: StandingPool) -> dict[str, list[str]]:
    """States of the workers by profile, once both lanes stand."""
    return {
        lane["profile"]: sorted(worker["state"] for worker in lane["workers"])
        for lane in pool.status()["lanes"]
        if lane["state"] == "ready"
    }


def with_standbys(pool: StandingPool) -> bool:
    found = workers(pool)
    return len(found) == 2 and all("standby" in states for states in found.values())


def beats(path: Path) -> dict[str, list[float]]:
    """When user code was seen running, by pod."""
    found: dict[str, list[float]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        at, pod = line.split()
        found.setdefault(pod, []).append(float(at))
    return found


def assert_apart(path: Path) -> None:
    """The user code of one pod ended before that of the next one began."""
    spans = sorted((min(times), max(times)) for times in beats(path).values())
    assert len(spans) == 2
    (_, ended), (began, _) = spans
    assert ended < began + BEAT_S


def test_a_standby_waits_in_its_own_pod_and_takes_the_device_over(
    pool: StandingPool, bed: Bed
) -> None:
    path = bed.directory / "handover"
    bed.wait_for(lambda: len(workers(pool)) == 2, 120, "lanes of both images")
    first = ask(pool, "a", "one", job_s=12, beats=str(path))
    both = {"a": ["busy", "standby"], "b": ["standby"]}
    bed.wait_for(lambda: workers(pool) == both, 60, "a standby beside the active worker")
    second = ask(pool, "b", "two", job_s=1, beats=str(path))
    (one,), (two,) = first.finish(), second.finish()
    assert (one["outcome"], two["outcome"], two["source"]) == ("ok", "ok", "handover")
    assert one["pod"] != two["pod"]
    assert_apart(path)
    claims = {str(pod.spec.resource_claims[0].resource_claim_name) for pod in lane_pods(pool)}
    assert claims == {f"{NAME}-{CLAIM}"}


def lane_pods(pool: StandingPool) -> list[Any]:
    return [
        pod
        for name in "ab"
        for pod in pool.bed.pods(f"ray.io/cluster={NAME},ray.io/group={name}")
        if pod.metadata.deletion_timestamp is None
    ]


def test_the_device_goes_to_and_fro(pool: StandingPool, bed: Bed) -> None:
    starts = []
    for number in range(6):
        bed.wait_for(lambda: with_standbys(pool), 60, "standbys of both images")
        (row,) = ask(pool, "ba"[number % 2], f"turn{number}", job_s=0.1).finish()
        assert row["outcome"] == "ok"
        starts.append(row["start_s"])
    print("handover between pods:", ", ".join(f"{1e3 * s:.0f} ms" for s in sorted(starts)))


def test_a_pod_that_cannot_be_reached_keeps_the_device_while_it_uses_it(
    pool: StandingPool, bed: Bed
) -> None:
    """The controller gives it up long before its worker knows of that."""
    path = bed.directory / "cut"
    first = ask(pool, "a", "cut", job_s=300, beats=str(path))
    bed.wait_for(lambda: beats(path), 60, "the first beat")
    (victim,) = beats(path)
    cut_at = time.time()
    bed.faults.cut_network(victim)
    (lost,) = first.finish()
    assert lost["outcome"] == "WorkerLost"
    deadline = time.monotonic() + FENCED_S
    while True:
        (row,) = ask(pool, "b", "next", job_s=1, beats=str(path)).finish()
        if row["outcome"] == "ok":
            break
        assert "still locked" in row["why"], row
        assert time.monotonic() < deadline
    assert beats(path)[victim][-1] > cut_at + 1  # it went on meanwhile
    assert_apart(path)


def test_a_killed_pod_leaves_the_device_at_once(pool: StandingPool, bed: Bed) -> None:
    path = bed.directory / "killed"
    bed.wait_for(lambda: len(workers(pool)) == 2, 120, "lanes of both images")
    first = ask(pool, "a", "killed", job_s=300, beats=str(path))
    bed.wait_for(lambda: beats(path), 90, "the first beat")
    (victim,) = beats(path)
    second = ask(pool, "b", "heir", job_s=1, beats=str(path))
    bed.faults.kill_pod(victim)
    (lost,), (heir,) = first.finish(), second.finish()
    assert (lost["outcome"], heir["outcome"]) == ("WorkerLost", "ok")
    assert_apart(path)
