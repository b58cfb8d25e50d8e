"""Settings of a pool: parsed once, at the edge, into frozen values.

Read by ``firepool up``, ``fp.start`` and the controller (which keeps the JSON form in Ray's
internal KV). Knows nothing of Ray: what only the running cluster can tell (how many lanes fit) is
filled in by ``PoolConfig.with_capacity``. Every mistake is a ``ConfigError`` that names the path
of the key; an unknown key lists the valid ones. The reason for each default stands beside it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from firepool_ray.config.base import (
    NAME_PATTERN,
    Amount,
    Count,
    EnvName,
    EnvValue,
    Group,
    ModuleName,
    Name,
    PositiveAmount,
    PositiveSeconds,
    Seconds,
)
from firepool_ray.config.explaining import explain
from firepool_ray.config.kubernetes import KubernetesConfig, PodConfig, parse_queue
from firepool_ray.config.pods import check_pods
from firepool_ray.core import keepalive
from firepool_ray.core.model import PoolSpec, ProfileSpec, QueueSpec
from firepool_ray.errors import ConfigError

_NAME = re.compile(NAME_PATTERN)

#: ``max_lanes`` of a profile that may take whatever the cluster gives (an autoscaler may add more).
UNBOUNDED_LANES = 1_000_000


def check_name(kind: str, name: object) -> str:
    """Return ``name`` if it is a legal name of a ``kind`` ("caller", "queue", ...).

    Raises ``ConfigError`` that says what is allowed.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigError(
        f"{kind} name {name!r} is not allowed: use 1 to 63 letters, digits, '.', '_' or '-', "
        "beginning with a letter or digit"
    )


class ProfileConfig(Group):
    """A kind of hardware plus a base environment; its workers are interchangeable until bound."""

    #: GPUs of one lane: 0, a fraction, or several. 0, because a pool must also run on a laptop.
    gpus: Amount = 0.0
    #: CPUs of one lane. 1, what Ray gives an ordinary task.
    cpus: Amount = 1.0
    #: Memory reserved per lane. None: not reserved, as Ray does by default.
    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    #: Custom Ray resources of one lane. Empty: any node with the GPUs and CPUs will do.
    resources: dict[str, PositiveAmount] = Field(default_factory=dict)
    #: Node labels a lane's node must have (Ray label selector). Empty: any node.
    labels: dict[str, str] = Field(default_factory=dict)
    #: Started, preloaded, unbound workers beside the active one. 1 hides the start from the next
    #: caller at the price of one process's host memory; it holds no GPU memory.
    standbys: Count = 1
    #: Lanes kept even when nobody asks. 0, so that an idle pool holds no GPU.
    min_lanes: Count = 0
    #: None: as many as the cluster's resources allow.
    max_lanes: Annotated[int, Field(ge=1)] | None = None
    #: Until when an idle bound worker is held for its caller: ``adaptive`` (as long as the caller's
    #: own pauses make it pay), ``fixed:SECONDS``, ``never`` or ``always``.
    keep_alive: str = "adaptive"
    #: What a second of a cold start is worth, in seconds of an idle worker. 1 holds the fewest
    #: GPU-seconds in all; more buys warm starts with them. Only for ``adaptive``.
    cold_price: PositiveAmount = 1.0
    #: With ``adaptive``: where a caller's pauses are regular, have its workers ready just before
    #: its next burst.
    warm_ahead: bool = True
    #: A lane without active worker (beyond ``min_lanes``) goes after this. None: as ``keep_alive``
    #: says; learned from how soon lanes are needed again, where that is ``adaptive``.
    lane_keep_s: Seconds | None = None
    #: Kind of GPU. Budgets for idle workers are per queue and kind, over all profiles of the kind.
    gpu_type: Name = "gpu"
    #: Modules a worker imports before it counts as standby. Empty: nothing to wait for.
    preload: Annotated[tuple[ModuleName, ...], Field(strict=False)] = ()
    #: Environment variables of every worker of the profile, set before ``preload``.
    env: dict[EnvName, EnvValue] = Field(default_factory=dict)
    #: A worker that is not ready by then counts as failed. 60 s, enough to import a large framework
    #: from a cold disk; Ray itself would wait for ever.
    start_deadline_s: PositiveSeconds = 60.0
    #: A lane that is not placed by then counts as failed. 300 s, enough for a node to be added.
    grow_deadline_s: PositiveSeconds = 300.0
    #: Name of a device claim that lanes share: only one active worker among them. "": the lane is
    #: its own device, the usual case.
    device: Annotated[str, Field(pattern=rf"^({NAME_PATTERN})?$")] = ""
    #: The pods that carry its lanes, in a pool with ``kubernetes``.
    pod: PodConfig = PodConfig()

    @field_validator("keep_alive")
    @classmethod
    def _is_policy(cls, text: str) -> str:
        keepalive.parse(text)
        return text

    @model_validator(mode="before")
    @classmethod
    def _claim_is_device(cls, data: Any) -> Any:
        """Lanes that share a claim share a device, without saying so twice."""
        pod = data.get("pod") if isinstance(data, Mapping) else None
        if isinstance(pod, Mapping) and not data.get("device"):
            kind, _, claim = str(pod.get("sharing", "")).partition(":")
            return {**data, "device": claim} if kind == "dra" else data
        return data

    @model_validator(mode="after")
    def _consistent(self) -> ProfileConfig:
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"gpus is {self.gpus}: above 1, Ray reserves whole GPUs only")
        if self.max_lanes is not None and self.min_lanes > self.max_lanes:
            raise ValueError(f"min_lanes {self.min_lanes} exceeds max_lanes {self.max_lanes}")
        if not (self.gpus or self.cpus or self.memory_bytes or self.resources):
            raise ValueError("a lane that reserves nothing cannot be placed: set gpus or cpus")
        reserved = sorted({"CPU", "GPU", "memory"} & set(self.resources))
        if reserved:
            raise ValueError(
                f"resources must not name {', '.join(reserved)}: use cpus, gpus, memory_bytes"
            )
        return self

    @property
    def unit(self) -> float:
        """What one lane counts as: its GPUs, or 1 where it has none."""
        return self.gpus if self.gpus > 0 else 1.0


class QueueConfig(Group):
    """Who pays. All three are in units: GPUs, or lanes of profiles without GPUs."""

    #: Below this the queue is entitled and may have busy workers of others drained. None: all of
    #: the pool, so that a single queue never waits for itself.
    quota_gpus: Amount | None = None
    #: Never more than this. None: idle capacity may be borrowed without bound.
    limit_gpus: Amount | None = None
    #: Share of what is borrowed beyond the quotas. 1: equal shares.
    weight: PositiveAmount = 1.0
    #: The queue of the cluster whose word counts instead, as long as it can be read:
    #: ``kueue:CLUSTERQUEUE``, ``kai:QUEUE``, ``volcano:QUEUE``, ``yunikorn:root.team`` or
    #: ``quota:NAMESPACE/RESOURCEQUOTA``. "": the three above.
    cluster_queue: str = ""

    @field_validator("cluster_queue")
    @classmethod
    def _is_cluster_queue(cls, text: str) -> str:
        parse_queue(text)
        return text

    @model_validator(mode="after")
    def _consistent(self) -> QueueConfig:
        if self.limit_gpus is not None and (self.quota_gpus or 0.0) > self.limit_gpus:
            raise ValueError(f"quota_gpus {self.quota_gpus} exceeds limit_gpus {self.limit_gpus}")
        return self


class PoolConfig(Group):
    """All settings of one pool. ``queues`` always has ``default_queue`` and "default"."""

    #: At least one; the order matters only for ``default_profile``.
    profiles: Annotated[dict[Name, ProfileConfig], Field(min_length=1)]
    queues: dict[Name, QueueConfig] = Field(default_factory=dict)
    #: Profile of jobs that name none. "": the first profile.
    default_profile: str = ""
    #: Queue of jobs that name none. "default" needs no entry in ``queues``.
    default_queue: str = "default"
    #: One step of priority is worth this much waiting; entitled demand older than this may have a
    #: busy worker drained. 5 s, a few times the length of the jobs the pool is made for.
    window_s: PositiveSeconds = 5.0
    #: Units all lanes together may reserve. None: what the cluster has.
    max_gpus: PositiveAmount | None = None
    #: Units that may be held idle (warm). None: keep-alive and budgets alone decide.
    idle_cap_gpus: Amount | None = None
    #: Part of its quota that a queue may keep idle for its callers while others want to borrow. A
    #: quarter keeps the loops of a busy queue warm and leaves most of the quota to be borrowed.
    idle_quota_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    #: Units of each GPU type that no budget counts on. 0: everything may be used.
    headroom_gpus: Amount = 0.0
    #: What a cluster queue said of quota, limit and other work there counts for so long; then the
    #: settings below ``queues`` hold again. A minute rides out a restart of its API server.
    signal_stale_s: PositiveSeconds = 60.0
    #: Token bucket that paces standby refills, so that they never compete with demand. 2 per
    #: second starts a worker about as fast as two cores can.
    refill_rate_per_s: PositiveAmount = 2.0
    refill_burst: Annotated[int, Field(ge=1)] = 4
    #: Refills wait until no promotion was asked for so long: a process that starts beside a
    #: promotion doubles its latency on a small machine. A quarter second outlasts a handover.
    refill_quiet_s: Seconds = 0.25
    #: First pause after a failed start; doubled up to the maximum. Half a second forgives a hiccup.
    start_backoff_s: PositiveSeconds = 0.5
    start_backoff_max_s: PositiveSeconds = 30.0
    #: So many failures in a row open the profile's breaker: its jobs fail with the reason instead
    #: of waiting. 5 in a row is no hiccup.
    breaker_failures: Annotated[int, Field(ge=1)] = 5
    #: Then one start is tried again. Long enough for a person to read the reason.
    breaker_open_s: PositiveSeconds = 60.0
    #: True for a pool that a ``submit`` started by itself: it ends after its last client.
    embedded: bool = False
    #: An embedded pool outlives its last client by this; a driver run twice finds it warm.
    client_linger_s: Seconds = 60.0
    #: The RayCluster below the pool. None: a pool that knows nothing of Kubernetes.
    kubernetes: KubernetesConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Add what is implied: empty groups, the queue "default", the first profile as default."""
        if not isinstance(data, Mapping):
            return data
        filled = dict(data)
        queues = filled.get("queues") or {}
        if isinstance(queues, Mapping):
            filled["queues"] = {"default": {}, **_groups(queues)}
        profiles = filled.get("profiles")
        if isinstance(profiles, Mapping) and profiles:
            filled["profiles"] = _groups(profiles)
            if not filled.get("default_profile"):
                filled["default_profile"] = str(next(iter(profiles)))
        return filled

    @model_validator(mode="after")
    def _consistent(self) -> PoolConfig:
        for key, chosen, valid in (
            ("default_profile", self.default_profile, self.profiles),
            ("default_queue", self.default_queue, self.queues),
        ):
            if chosen not in valid:
                raise ValueError(f"{key} {chosen!r} is not defined. Valid: {', '.join(valid)}")
        if self.start_backoff_s > self.start_backoff_max_s:
            raise ValueError("start_backoff_s exceeds start_backoff_max_s")
        reserved = sum(p.min_lanes * p.unit for p in self.profiles.values())
        if self.max_gpus is not None and reserved > self.max_gpus:
            raise ValueError(
                f"min_lanes of all profiles need {reserved:g} units, max_gpus is {self.max_gpus:g}"
            )
        check_pods(self)
        return self

    def with_capacity(self, lanes: Mapping[str, int]) -> PoolConfig:
        """This pool with ``max_lanes`` filled in where nothing was said.

        ``lanes`` maps a profile to how many of its lanes the cluster could hold.
        """
        profiles = {
            name: profile.model_copy(update={"max_lanes": max(1, profile.min_lanes, lanes[name])})
            if profile.max_lanes is None and name in lanes
            else profile
            for name, profile in self.profiles.items()
        }
        return self.model_copy(update={"profiles": profiles})

    def to_spec(self) -> PoolSpec:
        """The part of the settings that the controller's machine decides with."""
        return PoolSpec(
            profiles=tuple(
                ProfileSpec(
                    name=name,
                    gpus=profile.gpus,
                    standbys=profile.standbys,
                    min_lanes=profile.min_lanes,
                    max_lanes=(UNBOUNDED_LANES if profile.max_lanes is None else profile.max_lanes),
                    keep_alive=profile.keep_alive,
                    cold_price=profile.cold_price,
                    warm_ahead=profile.warm_ahead,
                    gpu_type=profile.gpu_type,
                    lane_keep_s=profile.lane_keep_s,
                )
                for name, profile in self.profiles.items()
            ),
            queues=tuple(
                QueueSpec(
                    name=name,
                    quota=_or_inf(queue.quota_gpus),
                    limit=_or_inf(queue.limit_gpus),
                    weight=queue.weight,
                )
                for name, queue in self.queues.items()
            ),
            window_s=self.window_s,
            max_gpus=_or_inf(self.max_gpus),
            idle_cap=_or_inf(self.idle_cap_gpus),
            rho=self.idle_quota_share,
            headroom=self.headroom_gpus,
            signal_stale_s=self.signal_stale_s,
            refill_rate_per_s=self.refill_rate_per_s,
            refill_burst=self.refill_burst,
            refill_quiet_s=self.refill_quiet_s,
            start_backoff_s=self.start_backoff_s,
            start_backoff_max_s=self.start_backoff_max_s,
            breaker_failures=self.breaker_failures,
            breaker_open_s=self.breaker_open_s,
        )

    def to_json(self) -> str:
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> PoolConfig:
        """The inverse of ``to_json``. Raises ``ConfigError``."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(explain("pool settings", error, cls)) from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "pool settings") -> PoolConfig:
        """Settings from plain values; ``where`` opens the messages of ``ConfigError``."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(explain(where, error, cls)) from None


def load(path: str | Path) -> PoolConfig:
    """Read a pool file (YAML). Raises ``ConfigError`` for anything wrong with it."""
    where = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot read the pool file: {error}") from None
    try:
        data = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML: {error}") from None
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{where}: a pool file is a mapping with the key 'profiles', "
            f"this one holds {'nothing' if data is None else type(data).__name__}"
        )
    return PoolConfig.from_dict(data, where)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that is given twice, where plain YAML lets the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _groups(entries: Mapping[Any, Any]) -> dict[Any, Any]:
    # "gpu:" with nothing below it is a profile with all defaults.
    return {name: {} if group is None else group for name, group in entries.items()}


def _or_inf(value: float | None) -> float:
    return float("inf") if value is None else value
