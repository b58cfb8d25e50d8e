"""What Kueue, KAI, Volcano and YuniKorn want to see on a RayCluster and its pods.

Pods say it themselves, so that it works whether or not Ray's operator was started with that
scheduler (its ``--batch-scheduler``); the RayCluster says it too, since the operator copies from
there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from firepool_ray.config.kubernetes import KubernetesConfig
from firepool_ray.kube.api import RESOURCE_QUOTA, Kind

_KUEUE_VERSIONS = ("v1beta2", "v1beta1")


def _kueue(kind: str, plural: str, namespaced: bool = True) -> tuple[Kind, ...]:
    """Newest first: a Kueue serves one version or both."""
    return tuple(
        Kind(f"kueue.x-k8s.io/{version}", kind, plural, namespaced) for version in _KUEUE_VERSIONS
    )


KUEUE_WORKLOADS = _kueue("Workload", "workloads")
KUEUE_LOCAL_QUEUES = _kueue("LocalQueue", "localqueues")
KUEUE_CLUSTER_QUEUES = _kueue("ClusterQueue", "clusterqueues", namespaced=False)
KUEUE_COHORTS = _kueue("Cohort", "cohorts", namespaced=False)
KUEUE_FLAVORS = _kueue("ResourceFlavor", "resourceflavors", namespaced=False)
KAI_KINDS = (Kind("scheduling.run.ai/v2", "Queue", "queues", namespaced=False),)
VOLCANO_KINDS = (Kind("scheduling.volcano.sh/v1beta1", "Queue", "queues", namespaced=False),)
VOLCANO_POD_GROUP_KINDS = (Kind("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups"),)
#: (kind of queue, what it does for the pool) -> what must be there. YuniKorn's queues are none of
#: Kubernetes' objects.
QUEUE_KINDS: dict[tuple[str, str], tuple[Kind, ...]] = {
    ("kueue", "admits"): KUEUE_LOCAL_QUEUES,
    ("kueue", "signals"): KUEUE_CLUSTER_QUEUES,
    ("kai", "admits"): KAI_KINDS,
    ("kai", "signals"): KAI_KINDS,
    ("volcano", "admits"): VOLCANO_KINDS,
    ("volcano", "signals"): VOLCANO_KINDS,
    ("quota", "signals"): (RESOURCE_QUOTA,),
}

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_ELASTIC = "kueue.x-k8s.io/elastic-job"
KAI_QUEUE = "kai.scheduler/queue"
VOLCANO_QUEUE = "volcano.sh/queue-name"
VOLCANO_POD_QUEUE = "scheduling.volcano.sh/queue-name"


@dataclass(frozen=True)
class Admission:
    cluster_labels: dict[str, str] = field(default_factory=dict)
    cluster_annotations: dict[str, str] = field(default_factory=dict)
    pod_labels: dict[str, str] = field(default_factory=dict)
    pod_annotations: dict[str, str] = field(default_factory=dict)
    scheduler: str = ""  #: ``schedulerName`` of the pods; "": the default one
    suspended: bool = False  #: created suspended, and set free by the queue


def admission_of(settings: KubernetesConfig) -> Admission:
    kind, queue = settings.admitter
    match kind:
        case "kueue":
            # Elastic: each pod that the autoscaler adds is admitted by itself. Else Kueue would
            # admit all of maxReplicas at once, or nothing.
            return Admission(
                cluster_labels={KUEUE_QUEUE: queue},
                cluster_annotations={KUEUE_ELASTIC: "true"},
                suspended=True,
            )
        case "kai":
            labels = {KAI_QUEUE: queue}
            return Admission(labels, pod_labels=labels, scheduler="kai-scheduler")
        case "volcano":
            labels = {VOLCANO_QUEUE: queue}
            return Admission(
                labels,
                pod_labels=labels,
                pod_annotations={VOLCANO_POD_QUEUE: queue},
                scheduler="volcano",
            )
        case "yunikorn":
            labels = {
                "yunikorn.apache.org/app-id": settings.name,
                "yunikorn.apache.org/queue": queue,
            }
            legacy = {"applicationId": settings.name, "queue": queue}
            return Admission(labels, pod_labels={**labels, **legacy}, scheduler="yunikorn")
    return Admission()
