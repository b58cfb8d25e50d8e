"""The part of a pool file that describes pods: read by ``firepool_ray.kube`` and the controller.

Knows nothing of the Kubernetes client. What one key alone can get wrong is checked here; what
follows from a profile's other settings stands in ``pods``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from firepool_ray.config.base import (
    Count,
    EnvName,
    EnvValue,
    Group,
    PositiveAmount,
    PositiveSeconds,
    Seconds,
)

#: Who may admit the pods of a pool's RayCluster.
ADMITTERS = ("kueue", "kai", "volcano", "yunikorn")
#: Whose quota a queue of the pool may follow.
SIGNALLERS = (*ADMITTERS, "quota")
#: Parameters of ``ray start`` that follow from other settings.
_OUR_PARAMS = {"num-cpus", "num-gpus", "labels", "resources", "address", "block"}

#: Where pods that share a device through a claim have the folder of its lock.
DEVICE_LOCKS = "/var/lib/firepool/devices"

_DNS = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
#: 40 letters leave room for what Ray's operator and firepool append.
ClusterName = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$")]
ObjectName = Annotated[str, Field(pattern=rf"^({_DNS}(\.{_DNS})*)?$")]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")]
ResourceName = Annotated[str, Field(pattern=rf"^{_DNS}(\.{_DNS})*/[A-Za-z0-9][-A-Za-z0-9._]*$")]
Strings = dict[str, str]


class Sharing(NamedTuple):
    """How the pods of a profile share GPUs, as written in ``pod.sharing``."""

    kind: str  #: "", "dra", "kai-fraction", "kai-memory", "time-slicing" or "mig"
    value: str = ""

    @property
    def share(self) -> float:
        """The part of one GPU that a pod gets; inf where that is no bound."""
        if self.kind == "kai-fraction":
            return float(self.value)
        if self.kind == "time-slicing":
            return 1 / int(self.value)
        return math.inf

    @property
    def is_partial(self) -> bool:
        """Whether a pod gets less than a whole device of the resource it names."""
        return self.kind in ("kai-fraction", "kai-memory", "time-slicing")


#: What follows the colon, and what people are told it must be.
_SHARING: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "dra": (lambda text: _is_name(text), "the name of a ResourceClaim"),
    "kai-fraction": (lambda text: _is_fraction(text), "a number between 0 and 1"),
    "kai-memory": (lambda text: text.isdecimal() and int(text) > 0, "MiB of GPU memory"),
    "time-slicing": (lambda text: text.isdecimal() and int(text) > 1, "2 or more replicas"),
    "mig": (lambda text: text.replace(".", "").isalnum(), "a MIG profile such as 1g.10gb"),
}


def parse_sharing(text: str) -> Sharing:
    """Raises ``ValueError`` that lists what is allowed."""
    if not text:
        return Sharing("")
    kind, _, value = text.partition(":")
    if kind not in _SHARING:
        raise ValueError(f"unknown sharing {kind!r}: use {', '.join(f'{k}:...' for k in _SHARING)}")
    holds, wanted = _SHARING[kind]
    if not holds(value):
        raise ValueError(f"{kind}: needs {wanted} after the colon")
    return Sharing(kind, value)


def parse_queue(text: str, kinds: tuple[str, ...] = SIGNALLERS) -> tuple[str, str]:
    """(kind, name) of "kueue:rl" and the like; ("", "") of "". Raises ``ValueError``."""
    if not text:
        return "", ""
    kind, _, name = text.partition(":")
    if kind not in kinds:
        raise ValueError(
            f"unknown kind of queue {kind!r}: use {', '.join(f'{k}:NAME' for k in kinds)}"
        )
    if not name or any(letter.isspace() for letter in name):
        raise ValueError(f"{kind}: needs the name of a queue after the colon")
    if kind == "quota" and name.count("/") != 1:
        raise ValueError("quota: needs NAMESPACE/RESOURCEQUOTA after the colon")
    return kind, name


class Toleration(Group):
    """As in a pod's ``tolerations``."""

    #: "": every taint, with ``operator: Exists``.
    key: str = ""
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    #: "": every effect.
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class Volume(Group):
    """One mount of the Ray container; exactly one source."""

    mount: Annotated[str, Field(pattern=r"^/.+")]
    #: A PersistentVolumeClaim, a Secret or a ConfigMap of the namespace.
    claim: ObjectName = ""
    secret: ObjectName = ""
    config_map: ObjectName = ""
    read_only: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> Volume:
        if sum(map(bool, (self.claim, self.secret, self.config_map))) != 1:
            raise ValueError("a volume has exactly one of claim, secret, config_map")
        return self


class PodConfig(Group):
    """The pods that carry a profile's lanes. Only a pool with ``kubernetes`` reads this."""

    #: "": ``kubernetes.image``. Ray and firepool-ray must be in it.
    image: str = ""
    #: Lanes of one pod. 1, so that each lane's pod comes and goes by itself.
    lanes: Annotated[int, Field(ge=1)] = 1
    #: CPUs of the pod. None: what its lanes need, rounded up.
    cpus: PositiveAmount | None = None
    #: Memory of the pod. None: what its lanes reserve (4Gi where they reserve none) plus 2Gi.
    memory: Quantity | None = None
    #: Pods that stay when nobody asks. None: what ``min_lanes`` need.
    min_pods: Count | None = 0
    #: None: what ``max_lanes`` need.
    max_pods: Annotated[int, Field(ge=1)] | None = None
    #: A pod without lanes goes after this. None: ``kubernetes.idle_timeout_s``.
    idle_timeout_s: Seconds | None = None
    #: The resource that stands for a GPU. With ``sharing: mig:...`` it follows from that.
    gpu_resource: ResourceName = "nvidia.com/gpu"
    #: "" (whole GPUs), ``dra:CLAIM``, ``kai-fraction:0.5``, ``kai-memory:4000`` (MiB),
    #: ``time-slicing:4`` (replicas of each GPU) or ``mig:1g.10gb``.
    sharing: str = ""
    node_selector: Strings = Field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False)] = ()
    annotations: Strings = Field(default_factory=dict)
    #: Environment of the Ray container; ``env`` of the profile is that of its workers.
    env: dict[EnvName, EnvValue] = Field(default_factory=dict)
    #: Secrets whose keys become environment variables of the Ray container.
    env_secrets: Annotated[tuple[ObjectName, ...], Field(strict=False)] = ()
    volumes: Annotated[tuple[Volume, ...], Field(strict=False)] = ()

    @field_validator("sharing")
    @classmethod
    def _is_sharing(cls, text: str) -> str:
        parse_sharing(text)
        return text

    @model_validator(mode="after")
    def _consistent(self) -> PodConfig:
        if self.max_pods is not None and (self.min_pods or 0) > self.max_pods:
            raise ValueError(f"min_pods {self.min_pods} exceeds max_pods {self.max_pods}")
        return self

    @property
    def shares(self) -> Sharing:
        return parse_sharing(self.sharing)


class SizeConfig(Group):
    """Requests and limits of a pod that carries no lanes."""

    cpus: PositiveAmount = 1.0
    memory: Quantity = "2Gi"


class DriversConfig(SizeConfig):
    """Pods for the drivers of RayJobs, one each: kept off the head, which their end could take."""

    memory: Quantity = "4Gi"
    #: They come when a RayJob asks. 0: its driver runs on the head, and ends with that.
    max_pods: Count = 4


class KubernetesConfig(Group):
    """The RayCluster below the pool. ``firepool kube render`` turns it into manifests."""

    #: Of the RayCluster, and beginning of the name of everything that is applied.
    name: ClusterName = "firepool"
    #: "": that of the connection.
    namespace: ObjectName = ""
    #: Of all pods. Ray and firepool-ray must be in it.
    image: Annotated[str, Field(min_length=1)] = "rayproject/ray:2.60.0"
    #: "": what the image's tag begins with; where that is no version, the Ray installed here.
    ray_version: str = ""
    #: A pod without lanes goes after this. A minute, so that the pause between two bursts does not
    #: cost a pod's start.
    idle_timeout_s: Seconds = 60.0
    #: Running jobs of a pod that is deleted have so long to finish. 30 s, Kubernetes' own grace.
    drain_s: PositiveSeconds = 30.0
    #: The head carries no lanes and no user code.
    head: SizeConfig = SizeConfig(memory="4Gi")
    #: The pod in which the controller lives, apart from the head.
    system: SizeConfig = SizeConfig()
    drivers: DriversConfig = DriversConfig()
    #: ``token``: everyone who talks to Ray needs the token that Ray's operator, KubeRay 1.5.1 or
    #: newer, keeps in a Secret.
    auth: Literal["disabled", "token"] = "disabled"
    #: Where Ray keeps what must survive the head: "" (nothing survives), "managed" (a Redis is
    #: rendered) or "HOST:PORT".
    redis: Annotated[str, Field(pattern=r"^(managed|[A-Za-z0-9][A-Za-z0-9.-]*:[0-9]+)?$")] = ""
    #: Secret with the key "password" for that Redis. "": it has no password.
    redis_secret: ObjectName = ""
    #: Image of the Redis that is rendered.
    redis_image: Annotated[str, Field(min_length=1)] = "redis:7.4"
    #: Who admits these pods: ``kueue:LOCALQUEUE``, ``kai:QUEUE``, ``volcano:QUEUE``,
    #: ``yunikorn:root.queue``. "": the cluster's scheduler alone.
    queue: str = ""
    #: Where YuniKorn's REST API answers, HOST:PORT: a queue with ``cluster_queue: yunikorn:...``
    #: is read from there.
    yunikorn: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]*:[0-9]+$")] = (
        "yunikorn-service.yunikorn:9080"
    )
    #: DRA device class of the claims that ``pod.sharing: dra:CLAIM`` names.
    device_class: Annotated[str, Field(min_length=1)] = "gpu.nvidia.com"
    #: Where pods of one claim have their device's lock, which keeps two workers off one GPU even if
    #: their pods cannot be reached: "claim" (a small ReadWriteOnce volume per claim; such a volume
    #: may be mounted by all pods of one node, and pods of one device are) or "host:/FOLDER" (a
    #: folder of this pool alone on every node, which the pods' user may write), for clusters
    #: without a default StorageClass.
    device_locks: Annotated[str, Field(pattern=r"^(claim|host:/[^:]+)$")] = "claim"
    #: Only pods of this RayCluster, jobs of its namespace and Ray's operator may call Ray.
    network_policy: bool = True
    #: PodMonitors, for clusters with the Prometheus operator.
    monitors: bool = False
    #: Who the controller is. "": a service account is rendered, with the rights it needs.
    service_account: ObjectName = ""
    #: User of all containers. None: the image's own, who must not be root. 0: root.
    run_as_user: Count | None = None
    #: Further ``ray start`` parameters of all pods, e.g. {object-store-memory: "2000000000"}.
    ray_start_params: Strings = Field(default_factory=dict)
    #: For all pods; a profile's ``pod`` adds to them.
    node_selector: Strings = Field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False)] = ()
    annotations: Strings = Field(default_factory=dict)
    env: dict[EnvName, EnvValue] = Field(default_factory=dict)
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(strict=False)] = ()

    @field_validator("queue")
    @classmethod
    def _is_queue(cls, text: str) -> str:
        parse_queue(text, ADMITTERS)
        return text

    @field_validator("ray_start_params")
    @classmethod
    def _leaves_ours(cls, params: Strings) -> Strings:
        ours = sorted(
            {"num-cpus", "num-gpus", "labels", "resources", "address", "block"} & set(params)
        )
        if ours:
            raise ValueError(f"{', '.join(ours)} is set by firepool: use a profile's settings")
        return params

    @property
    def admitter(self) -> tuple[str, str]:
        """(kind, queue); ("", "") where the cluster's scheduler alone decides."""
        return parse_queue(self.queue, ADMITTERS)


def _is_name(text: str) -> bool:
    return (
        bool(text)
        and len(text) <= 63
        and text == text.lower()
        and text[0].isalnum()
        and (text.replace("-", "").isalnum() and text[-1].isalnum())
    )


def _is_fraction(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False
