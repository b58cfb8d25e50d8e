"""Cluster queues on a real API server: Kueue by its own controller, the others by their schemas."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from firepool_ray.config import PoolConfig
from firepool_ray.kube import access
from firepool_ray.kube.api import Kube
from firepool_ray.kube.queues import Own, Queues, Reading
from tests.kube.bed import Bed
from tests.kube.cluster.standing import NAME, StandingPool, settings, standing

NODES = "cpu-a:cpu=8,mem=32;gpu-a:cpu=8,mem=32,gpu=4"
KUEUE = True
GPU = "nvidia.com/gpu"
PATIENCE_S = 60.0
#: From the change of a queue to the pool's budget.
FOLLOWED_S = 2.0
WATCHED_S = 25.0
WATCH = Path(__file__).with_name("watch.py")
_KUEUE = "kueue.x-k8s.io/v1beta2"


def cluster_queue(gpus: int, name: str = "research") -> dict[str, Any]:
    """With every field that Kueue's webhooks would fill."""
    rows = [
        {"name": "cpu", "nominalQuota": "16"},
        {"name": "memory", "nominalQuota": "64Gi"},
        {"name": GPU, "nominalQuota": str(gpus)},
    ]
    group = {
        "coveredResources": [row["name"] for row in rows],
        "flavors": [{"name": "default", "resources": rows}],
    }
    never = {"policy": "Never"}
    spec = {
        "cohortName": "all",
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {
            "withinClusterQueue": "Never",
            "reclaimWithinCohort": "Never",
            "borrowWithinCohort": never,
        },
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
        "stopPolicy": "None",
        "resourceGroups": [group],
    }
    return made("ClusterQueue", name, spec)


def made(kind: str, name: str, spec: Any) -> dict[str, Any]:
    return {"apiVersion": _KUEUE, "kind": kind, "metadata": {"name": name}, "spec": spec}


def gpu_job(name: str, gpus: int) -> dict[str, Any]:
    """Held back by Kueue until it is admitted."""
    resources = {"cpu": "100m", "memory": "64Mi", GPU: str(gpus)}
    container = {
        "name": "main",
        "image": "none",
        "command": ["sleep", "600"],
        "resources": {"requests": resources, "limits": resources},
    }
    pod = {"containers": [container], "restartPolicy": "Never"}
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {"suspend": True, "template": {"spec": pod}},
    }


# ------------------------------------------------------------ Kueue, and a pool that follows it


@pytest.fixture(scope="module")
def pool(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingPool]:
    """Its RayCluster is admitted by no queue; one of its queues follows Kueue's."""
    bed.apply(
        [
            made("ResourceFlavor", "default", {}),
            cluster_queue(3),
            cluster_queue(5, "other"),
            made("LocalQueue", "team", {"clusterQueue": "research", "stopPolicy": "None"}),
        ]
    )
    queues = {"rl": {"cluster_queue": "kueue:research", "quota_gpus": 1, "limit_gpus": 1}}
    folder = tmp_path_factory.mktemp("pool")
    with standing(bed, folder, settings(queues=queues, signal_stale_s=5)) as pool:
        yield pool


def queue_of(pool: StandingPool) -> dict[str, Any]:
    row: dict[str, Any] = next(q for q in pool.status()["queues"] if q["queue"] == "rl")
    return row


def test_a_pool_has_what_its_clusterqueue_says(pool: StandingPool) -> None:
    pool.bed.wait_for(lambda: queue_of(pool)["quota"] == 3, PATIENCE_S, "quota of the ClusterQueue")
    said = queue_of(pool)
    assert (said["limit"], said["weight"]) == (8, 1)  # what it could borrow
    assert said["signal"]["source"] == "Kueue ClusterQueue research"
    assert pool.status()["kubernetes"]["queues"] == {}


def test_other_work_of_the_queue_counts(pool: StandingPool) -> None:
    pool.bed.apply([gpu_job("runs", 2), gpu_job("waits", 8)])

    def counted() -> bool:
        signal = queue_of(pool)["signal"]
        return bool(signal["running"] == 2 and signal["pending"] == 8)

    pool.bed.wait_for(counted, PATIENCE_S, "jobs beside the pool")
    batch = client.BatchV1Api(pool.bed.api)
    for name in ("runs", "waits"):
        batch.delete_namespaced_job(name, "default", propagation_policy="Background")
    pool.bed.wait_for(lambda: queue_of(pool)["signal"]["running"] == 0, PATIENCE_S, "their end")


def test_a_change_of_quota_reaches_the_budget_within_two_seconds(pool: StandingPool) -> None:
    """Seen by a pod of the cluster, since one look from here takes a second."""
    asked = ["python", str(WATCH), "rl", str(WATCHED_S)]
    changed: list[tuple[float, int]] = []
    with ThreadPoolExecutor(1) as executor:
        watching = executor.submit(pool.bed.exec, pool.head(), asked, timeout_s=WATCHED_S + 60)
        while not watching.done():
            gpus = 1 + len(changed) % 3
            changed.append((time.time(), gpus))
            pool.bed.apply([cluster_queue(gpus)])
            time.sleep(1.0 + len(changed) % 7 / 10)
    seen = [json.loads(line) for line in watching.result().stdout.splitlines()]
    began, ended = seen[0][0], seen[-1][0]
    delays = sorted(
        min((at - then for at, quota in seen if quota == gpus and at >= then), default=ended - then)
        for then, gpus in changed
        if began < then < ended - FOLLOWED_S
    )
    assert len(delays) >= 10, seen
    assert delays[int(0.9 * len(delays))] <= FOLLOWED_S, (delays, seen, changed)
    print(f"queue signal to budget: p50 {delays[len(delays) // 2]:.2f} s, max {delays[-1]:.2f} s")


def test_a_queue_that_is_gone_leaves_the_pool_file(pool: StandingPool) -> None:
    api = client.CustomObjectsApi(pool.bed.api)
    group, version = _KUEUE.split("/")
    api.delete_cluster_custom_object(group, version, "clusterqueues", "research")
    named = ("clusterqueues", "research")
    loose = {"metadata": {"finalizers": None}}  # Kueue keeps a queue that is in use
    try:
        api.patch_cluster_custom_object(group, version, *named, loose)
    except client.ApiException as error:
        assert error.status == 404
    pool.bed.wait_for(lambda: queue_of(pool)["signal"] is None, PATIENCE_S, "end of the signal")
    assert (queue_of(pool)["quota"], queue_of(pool)["limit"]) == (1, 1)
    told = pool.status()["kubernetes"]["queues"]["rl"]
    assert told == "there is no ClusterQueue 'research'"
    shown = pool.bed.exec(pool.head(), ["firepool", "status"]).stdout
    assert f"queue rl goes by the pool file: {told}" in shown


# ------------------------------------------------------------ KAI and Volcano, by their schemas


def limited(bed: Bed, follow: str) -> Kube:
    """A connection with exactly the rights that are rendered for a pool that follows it."""
    kind = follow.partition(":")[0]
    pool = PoolConfig.from_dict(
        {
            "profiles": {"gpu": {"gpus": 1, "max_lanes": 1}},
            "queues": {"q": {"cluster_queue": follow}},
            "kubernetes": {"name": f"rights-{kind}"},
        }
    )
    bed.apply(manifest for _, manifest in access.access(pool, "default"))
    request = {"spec": {"expirationSeconds": 3600}}
    token = bed.core.create_namespaced_service_account_token(
        access.account_name(pool), "default", body=request
    )
    found = client.Configuration()
    config.load_kube_config(str(bed.kubeconfig), client_configuration=found)
    found.cert_file = found.key_file = None
    found.api_key = {"authorization": f"Bearer {token.status.token}"}
    return Kube(client.ApiClient(found), "default", "test")


def read(kube: Kube, bed: Bed, follow: str, **expected: Any) -> Reading:
    own = Own("default", NAME, list)
    queues = Queues(
        kube, {"q": follow}, own, resource=GPU, yunikorn="nowhere:1", on_change=lambda: None
    )
    queues.start()

    def agrees() -> Reading | None:
        try:
            reading = queues.read("q")
        except Exception:
            return None
        same = all(getattr(reading, key) == value for key, value in expected.items())
        return reading if same else None

    try:
        reading = bed.wait_for(agrees, PATIENCE_S, f"reading of {follow}")
    finally:
        queues.stop()
    assert reading is not None
    return reading


def _say(bed: Bed, api: str, plural: str, name: str, status: dict[str, Any]) -> None:
    """As the scheduler's own controller would. What the schema does not know is refused."""
    client.CustomObjectsApi(bed.api).patch_cluster_custom_object_status(
        *api.split("/"), plural, name, {"status": status}, field_validation="Strict"
    )


def test_kai_by_its_published_definitions(bed: Bed) -> None:
    bed.define("kai")
    api = "scheduling.run.ai/v2"
    parent = {"resources": {"gpu": {"quota": 8, "limit": 6, "overQuotaWeight": 1}}}
    team = {"parentQueue": "dept", "resources": {"gpu": {"quota": 4, "limit": -1}}}
    bed.apply(
        {"apiVersion": api, "kind": "Queue", "metadata": {"name": name}, "spec": spec}
        for name, spec in (("dept", parent), ("team", team))
    )
    used = {"allocated": {GPU: "2500m"}, "requested": {GPU: "4"}}
    _say(bed, api, "queues", "team", used)
    reading = read(limited(bed, "kai:team"), bed, "kai:team", running=2.5)
    assert reading == Reading(4, 6, None, 2.5, 1.5, source="KAI Queue team")


def test_volcano_by_its_types(bed: Bed) -> None:
    bed.define("volcano")
    api = "scheduling.volcano.sh/v1beta1"
    spec = {"weight": 2, "capability": {GPU: "6"}, "deserved": {GPU: "4"}}
    group = {"queue": "team", "minMember": 1, "minResources": {GPU: "3"}}
    bed.apply(
        [
            {"apiVersion": api, "kind": "Queue", "metadata": {"name": "team"}, "spec": spec},
            {
                "apiVersion": api,
                "kind": "PodGroup",
                "metadata": {"name": "job"},
                "spec": group,
                "status": {"phase": "Inqueue"},  # its type has no status of its own to change
            },
        ]
    )
    status = {"state": "Open", "allocated": {GPU: "2"}, "reservation": {}}
    _say(bed, api, "queues", "team", status)
    reading = read(limited(bed, "volcano:team"), bed, "volcano:team", running=2, pending=3)
    assert reading == Reading(4, 6, 2, 2, 3, source="Volcano Queue team")
