"""Readers of cluster queues: objects as their systems document them, turned into readings."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from firepool_ray.errors import KubeError
from firepool_ray.kube.admission import (
    KAI_KINDS,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    VOLCANO_KINDS,
    VOLCANO_POD_GROUP_KINDS,
)
from firepool_ray.kube.api import RESOURCE_QUOTA, Object
from firepool_ray.kube.queues import Own, Queues, Reading
from tests.kube.fakes import FakeKube

GPU = "nvidia.com/gpu"
(KAI,), (VOLCANO,), (POD_GROUP,) = KAI_KINDS, VOLCANO_KINDS, VOLCANO_POD_GROUP_KINDS
CLUSTER_QUEUE, LOCAL_QUEUE, WORKLOAD = (
    KUEUE_CLUSTER_QUEUES[0],
    KUEUE_LOCAL_QUEUES[0],
    KUEUE_WORKLOADS[0],
)


class Followed:
    """Queues that are listened to, with the pods of the pool's own RayCluster."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.pods: list[Object] = []
        self.changes = 0
        self._queues: Queues | None = None

    def follow(self, text: str, yunikorn: str = "nowhere:1") -> Followed:
        own = Own("default", "pool", lambda: self.pods)
        self._queues = Queues(
            self.kube,  # type: ignore[arg-type]
            {"rl": text},
            own,
            resource=GPU,
            yunikorn=yunikorn,
            on_change=self._changed,
        )
        self._queues.start()
        return self

    def _changed(self) -> None:
        self.changes += 1

    def stop(self) -> None:
        if self._queues is not None:
            self._queues.stop()
        self.kube.end_watches()

    def read(self) -> Reading:
        assert self._queues is not None
        return self._queues.read("rl")

    def becomes(self, **expected: Any) -> Reading:
        """The reading, once it says so."""
        found: list[Any] = []

        def agrees() -> bool:
            try:
                found.append(self.read())
            except KubeError as error:
                found.append(error)
                return False
            return all(getattr(found[-1], key) == value for key, value in expected.items())

        eventually(agrees, found)
        reading: Reading = found[-1]
        return reading

    def refuses(self, match: str) -> None:
        found: list[Any] = []

        def refused() -> bool:
            try:
                found.append(self.read())
            except KubeError as error:
                found.append(str(error))
                return match in str(error)
            return False

        eventually(refused, found)


def eventually(what: Callable[[], object], seen: list[Any]) -> None:
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline, seen[-1:]
        time.sleep(0.01)


@pytest.fixture
def followed() -> Iterator[Followed]:
    made = Followed()
    yield made
    made.stop()


def named(name: str, spec: Any, status: Any = None, **metadata: Any) -> Object:
    made: Object = {"metadata": {"name": name, **metadata}, "spec": spec}
    return {**made, "status": status} if status is not None else made


def pod(gpus: int, *, node: str = "n", labels: Any = None, **metadata: Any) -> Object:
    labels = {"ray.io/cluster": "pool", **(labels or {})}
    container = {"name": "ray", "resources": {"limits": {GPU: str(gpus)}}}
    spec = {"containers": [container], **({"nodeName": node} if node else {})}
    return {"metadata": {"name": "p", "labels": labels, **metadata}, "spec": spec}


# ------------------------------------------------------------ Kueue


def cluster_queue(name: str, nominal: int, **spec: Any) -> Object:
    flavor = {"name": "x", "resources": [{"name": GPU, "nominalQuota": str(nominal)}]}
    groups = [{"coveredResources": [GPU], "flavors": [flavor]}]
    return named(name, {"resourceGroups": groups, **spec})


def workload(name: str, gpus: int, queue: str = "", **kept: Any) -> Object:
    """Admitted by ``queue``; "": it waits in the LocalQueue team."""
    container = {"name": "c", "resources": {"requests": {GPU: str(gpus // 2)}}}
    pods = {"name": "main", "count": 2, "template": {"spec": {"containers": [container]}}}
    status: Object = {"conditions": [{"type": "QuotaReserved", "status": str(bool(queue))}]}
    if queue:
        used = [{"name": "main", "resourceUsage": {GPU: str(gpus), "cpu": "2"}}]
        status["admission"] = {"clusterQueue": queue, "podSetAssignments": used}
    spec = {"queueName": "team", "podSets": [pods], **kept.pop("spec", {})}
    return named(name, spec, status, namespace="default", **kept)


def own(kind: str = "RayCluster", name: str = "pool") -> list[Object]:
    return [{"apiVersion": "ray.io/v1", "kind": kind, "name": name, "uid": "u"}]


@pytest.fixture
def kueue(followed: Followed) -> Followed:
    followed.kube.put(CLUSTER_QUEUE, cluster_queue("gpus", 8, cohortName="all"))
    followed.kube.put(CLUSTER_QUEUE, cluster_queue("other", 4, cohortName="all"))
    local = named("team", {"clusterQueue": "gpus"}, namespace="default")
    followed.kube.put(LOCAL_QUEUE, local)
    return followed.follow("kueue:gpus")


def test_kueue_says_quota_limit_and_weight(kueue: Followed) -> None:
    assert kueue.becomes(quota=8) == Reading(8, 12, 1, source="Kueue ClusterQueue gpus")
    changed = cluster_queue("gpus", 2, cohortName="all", fairSharing={"weight": "2500m"})
    kueue.kube.put(CLUSTER_QUEUE, changed)
    kueue.becomes(quota=2, limit=6, weight=2.5)
    kueue.kube.put(CLUSTER_QUEUE, cluster_queue("gpus", 2, fairSharing={"weight": "0"}))
    assert kueue.becomes(limit=2).weight == pytest.approx(0.001)
    assert kueue.changes >= 3


def test_a_stopped_clusterqueue_grants_nothing_new(kueue: Followed) -> None:
    kueue.kube.put(CLUSTER_QUEUE, cluster_queue("gpus", 8, stopPolicy="Hold"))
    reading = kueue.becomes(limit=0, quota=8)
    assert reading.source == "Kueue ClusterQueue gpus, stopped (Hold)"


def test_workloads_of_others_run_or_wait(kueue: Followed) -> None:
    for item in (
        workload("runs", 4, "gpus"),
        workload("waits", 2),
        workload("elsewhere", 6, "other"),
        workload("off", 8, spec={"active": False}),
        workload("of another queue", 2, spec={"queueName": "other"}),
        workload("the pool itself", 6, "gpus", ownerReferences=own()),
        workload("the pool's growth", 4, ownerReferences=own()),
        workload("another cluster", 2, "gpus", ownerReferences=own(name="pool-2")),
        workload("of a job of that name", 2, "gpus", ownerReferences=own(kind="Job")),
    ):
        kueue.kube.put(WORKLOAD, item)
    kueue.becomes(running=8, pending=2)
    done = workload("runs", 4, "gpus")
    done["status"]["conditions"].append({"type": "Finished", "status": "True"})
    kueue.kube.put(WORKLOAD, done)
    kueue.becomes(running=4, pending=2)
    kueue.kube.put(WORKLOAD, workload("another cluster", 2))  # preempted
    kueue.becomes(running=2, pending=4)


def test_an_older_kueue_without_cohort_objects_is_read(followed: Followed) -> None:
    followed.kube.unserved.add("kueue.x-k8s.io/v1beta2")
    followed.kube.put(KUEUE_CLUSTER_QUEUES[1], cluster_queue("gpus", 3, cohort="all"))
    assert followed.follow("kueue:gpus").becomes(quota=3).limit == 3


def test_a_queue_that_does_not_exist_is_said_so(kueue: Followed) -> None:
    kueue.becomes(quota=8)
    kueue.kube.remove(CLUSTER_QUEUE, "gpus")
    kueue.refuses("there is no ClusterQueue 'gpus'")
    kueue.kube.put(CLUSTER_QUEUE, cluster_queue("gpus", 1))
    kueue.becomes(quota=1)


def test_what_cannot_be_read_any_more_grows_old(kueue: Followed) -> None:
    assert kueue.becomes(quota=8).age_s == 0
    kueue.kube.failure = KubeError("forbidden", 403)
    kueue.kube.break_watches(KubeError("connection lost"))
    eventually(lambda: kueue.read().age_s > 0, [])
    assert kueue.read().quota == 8


def test_before_the_first_answer_the_reason_is_told(followed: Followed) -> None:
    followed.kube.failure = KubeError("list clusterqueues: forbidden", 403)
    followed.follow("kueue:gpus").refuses("forbidden")


# ------------------------------------------------------------ KAI


def kai_queue(name: str, parent: str = "", status: Any = None, **gpu: Any) -> Object:
    spec = {"displayName": name, "parentQueue": parent, "resources": {"gpu": gpu}}
    return named(name, spec, status or {})


def test_kai_says_everything_in_its_queue(followed: Followed) -> None:
    used = {"allocated": {GPU: "5500m", "cpu": "3"}, "requested": {GPU: "8"}}
    followed.kube.put(KAI, kai_queue("all", quota=-1, limit=-1, overQuotaWeight=1))
    dept = kai_queue("dept", "all", quota=8, limit=10)
    team = kai_queue("team", "dept", used, quota=4, limit=-1, overQuotaWeight=3)
    followed.kube.put(KAI, dept)
    followed.kube.put(KAI, team)
    reading = followed.follow("kai:team").becomes(quota=4)
    assert reading == Reading(4, 10, 3, 5.5, 2.5, source="KAI Queue team")
    # the pool's own pods: 2 placed, half a GPU shared, one waiting; and one in a queue below
    mine = {"labels": {"kai.scheduler/queue": "team"}}
    followed.kube.put(KAI, kai_queue("sub", "team", quota=0))
    followed.pods += [
        pod(2, **mine),
        pod(0, annotations={"gpu-fraction": "0.5"}, **mine),
        pod(1, node="", **mine),
        pod(1, labels={"kai.scheduler/queue": "sub"}),
        pod(7, labels={"kai.scheduler/queue": "dept"}),
    ]
    followed.becomes(running=2, pending=1.5)


def test_kai_grants_nothing_where_nothing_is_set(followed: Followed) -> None:
    followed.kube.put(KAI, named("team", {}))
    assert followed.follow("kai:team").becomes(quota=0) == Reading(
        0, 0, None, source="KAI Queue team"
    )
    followed.kube.put(KAI, kai_queue("team", "team", quota=-1, limit=3))  # its own parent
    assert followed.becomes(limit=3).quota == float("inf")


# ------------------------------------------------------------ Volcano


def test_volcano_says_capability_deserved_and_what_waits(followed: Followed) -> None:
    status = {"state": "Open", "allocated": {GPU: "6", "cpu": "10"}, "running": 2}
    spec = {"weight": 4, "capability": {GPU: "12"}, "deserved": {GPU: "8"}, "parent": "org"}
    followed.kube.put(VOLCANO, named("team", spec, status))
    followed.kube.put(VOLCANO, named("org", {"weight": 1, "capability": {GPU: 10}}))
    for name, gpus, phase, kept in (
        ("waits", 2, "Pending", {}),
        ("next", 1, "Inqueue", {}),
        ("runs", 6, "Running", {}),
        ("mine", 3, "Pending", {"ownerReferences": own()}),
    ):
        group = {"queue": "team", "minMember": 1, "minResources": {GPU: str(gpus)}}
        status = {"phase": phase}
        followed.kube.put(POD_GROUP, named(name, group, status, namespace="default", **kept))
    followed.pods.append(pod(4, annotations={"scheduling.volcano.sh/queue-name": "team"}))
    reading = followed.follow("volcano:team").becomes(pending=3)
    assert reading == Reading(8, 10, 4, 2, 3, source="Volcano Queue team")


def test_a_volcano_queue_by_weight_alone_leaves_the_quota_open(followed: Followed) -> None:
    followed.kube.put(VOLCANO, named("team", {"weight": 2}, {"state": "Open", "allocated": {}}))
    reading = followed.follow("volcano:team").becomes(weight=2)
    assert (reading.quota, reading.limit) == (None, None)
    guaranteed = {"weight": 2, "guarantee": {"resource": {GPU: "1"}}}
    followed.kube.put(VOLCANO, named("team", guaranteed, {"state": "Closing"}))
    assert followed.becomes(quota=1, limit=0).source == "Volcano Queue team, closing"


# ------------------------------------------------------------ YuniKorn


class Scheduler:
    """YuniKorn's REST API, as documented."""

    def __init__(self) -> None:
        self.root: Any = {}
        self.status = 200
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path == "/ws/v1/partition/default/queues"
                self.send_response(outer.status if known else 404)
                self.end_headers()
                self.wfile.write(json.dumps(outer.root).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler()
    yield made
    made.stop()


def yunikorn_queue(name: str, *children: Any, **fields: Any) -> Any:
    base = {"queuename": name, "status": "Active", "partition": "default"}
    return {**base, "isLeaf": not children, "children": list(children), **fields}


def test_yunikorn_is_asked_for_the_whole_path(followed: Followed, scheduler: Scheduler) -> None:
    team = yunikorn_queue(
        "root.dept.team",
        guaranteedResource={GPU: 2, "memory": 10**9},
        maxResource={GPU: 6},
        allocatedResource={GPU: 5, "vcore": 4000},
        pendingResource={GPU: 3},
    )
    dept = yunikorn_queue("root.dept", team, maxResource={GPU: 4})
    namesake = yunikorn_queue("root.de")
    scheduler.root = yunikorn_queue("root", namesake, dept, maxResource={"vcore": 64000})
    followed.follow("yunikorn:root.dept.team", scheduler.address)
    reading = followed.becomes(quota=2)
    assert reading == Reading(2, 4, None, 5, 3, source="YuniKorn queue root.dept.team")
    followed.pods += [
        pod(1, labels={"queue": "root.dept.team"}),
        pod(1, labels={"yunikorn.apache.org/queue": "root.dept.team.sub"}, node=""),
        pod(1, labels={"queue": "root.dept"}),
    ]
    followed.becomes(running=4, pending=2)
    team["maxResource"] = {GPU: 1}
    followed.becomes(limit=1)
    assert followed.changes >= 2


def test_yunikorn_that_fails_says_where_it_was_asked(
    followed: Followed, scheduler: Scheduler
) -> None:
    scheduler.root = yunikorn_queue("root")
    followed.follow("yunikorn:root.team", scheduler.address)
    followed.refuses("YuniKorn has no queue 'root.team'")


@pytest.mark.parametrize(
    ("status", "root", "match"),
    [(503, {}, "answered 503"), (200, ["no"], "is not YuniKorn's list of queues")],
)
def test_an_answer_that_is_none_is_no_reading(
    followed: Followed, scheduler: Scheduler, status: int, root: Any, match: str
) -> None:
    scheduler.status, scheduler.root = status, root
    followed.follow("yunikorn:root.team", scheduler.address)
    followed.refuses(match)


def test_nobody_at_the_address_is_told_with_the_setting(followed: Followed) -> None:
    followed.follow("yunikorn:root.team", "127.0.0.1:9")
    followed.refuses("set kubernetes.yunikorn to the HOST:PORT of its REST API")


# ------------------------------------------------------------ ResourceQuota


def test_a_resource_quota_is_quota_and_limit(followed: Followed) -> None:
    key = f"requests.{GPU}"
    status = {"hard": {key: "8"}, "used": {key: "5"}}
    quota = named("gpus", {"hard": {key: "8", "pods": "20"}}, status, namespace="default")
    followed.kube.put(RESOURCE_QUOTA, quota)
    followed.pods += [pod(1), pod(1, node="")]
    reading = followed.follow("quota:default/gpus").becomes(quota=8)
    assert reading == Reading(8, 8, None, 3, 0, source="ResourceQuota default/gpus")
    followed.kube.put(RESOURCE_QUOTA, named("gpus", {"hard": {"pods": "1"}}, namespace="default"))
    followed.refuses(f"says nothing of requests.{GPU}")
