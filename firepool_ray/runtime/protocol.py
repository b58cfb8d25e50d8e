"""What travels between client, controller, warden and worker: plain values, and names.

Imported by all four. Nothing here calls Ray or keeps state.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from firepool_ray.core.model import Caller, Demand, Fence, Grant, LeaseId, Rejection

NAMESPACE = "firepool"
CONTROLLER_NAME = "firepool-controller"

WordState = Literal["standby", "idle", "busy", "draining", "revoked"]


def worker_actor_name(profile: str, lane: str, slot: int, worker: str) -> str:
    """``firepool/<profile>/<lane>/<slot>`` plus the worker's own id, since slots are refilled."""
    return f"firepool/{profile}/{lane}/{slot}/{worker}"


def lane_group_name(profile: str, lane: str) -> str:
    return f"firepool/{profile}/{lane}"


def warden_actor_name(node_id: str, generation: int = 0) -> str:
    base = f"firepool/warden/{node_id[:16]}"
    return f"{base}/{generation}" if generation else base


class Word(NamedTuple):
    """One reading of a lease word (see ``runtime.words`` for its layout on disk)."""

    state: WordState
    epoch: int  #: highest controller epoch that touched it
    fence: Fence
    pid: int
    pid_start: int  #: start time of the process in clock ticks, from /proc/<pid>/stat
    since: float  #: CLOCK_MONOTONIC of the node at the last change of state
    deadline: float  #: CLOCK_MONOTONIC at which the running job is to be stopped; 0 for none
    queue: str
    caller: str
    client: str
    deps: str
    job: str  #: the running job, or the last one
    cancel: str  #: the job that is to be stopped, or ""
    cancel_reason: str  #: "cancelled" | "timeout" | "client_lost" | ""


@dataclass(frozen=True)
class WorkerSpec:
    """The only constructor argument of a worker."""

    worker: str
    lane: str
    slot: int
    profile: str
    node_id: str
    device: str
    epoch: int
    words_dir: str  #: folder of the node's lease words
    device_lock_path: str
    gpus: float
    cpus: float
    preload: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)  #: the profile's own environment


@dataclass(frozen=True)
class WorkerReady:
    """What a started worker says of itself."""

    pid: int
    pid_start: int
    node_id: str
    gpu_ids: tuple[str, ...]  #: Ray's accelerator ids of this worker
    start_s: float  #: from constructor entry to ready


@dataclass(frozen=True)
class Topology:
    """The lane as a promoted worker sees it."""

    lane: str
    node_id: str
    node_ip: str
    gpu_ids: tuple[str, ...]
    cpus: float


@dataclass(frozen=True)
class Promotion:
    """Everything a standby learns when it is promoted."""

    epoch: int
    fence: Fence
    caller: Caller
    deps: str
    client: str
    gpu_ids: tuple[str, ...]
    topology: Topology


Outcome = Literal[
    "ok",  #: value returned
    "error",  #: user code raised; ``error`` holds it
    "refused",  #: the lease does not hold (any more): nothing ran
    "need_code",  #: the worker lacks the function or code of this job: nothing ran
    "cancelled",  #: stopped by cancel; ``cancel_reason`` tells why
    "timeout",
    "bad_argument",  #: function or arguments could not be loaded
    "bad_result",  #: the value cannot travel
    "exit",  #: user code raised SystemExit or KeyboardInterrupt
]


class JobCall(NamedTuple):
    """Second argument of ``worker.run``; the first is the lease's ``Fence``."""

    job: str
    name: str
    submitted_at: float  #: time.time() of submit
    timeout_s: float  #: 0 for none
    source: str
    env: tuple[tuple[str, str], ...]
    fn_key: str  #: hash of the pickled function
    fn: bytes | None  #: the pickled function, where the worker may not have it yet
    code_key: str  #: hash of the zip with the caller's own modules; "" for none
    code: bytes | None
    args: bytes | None  #: pickled (args, kwargs); None where they come as the first of *refs
    buffers: tuple[bytes, ...]  #: out-of-band buffers of ``args``


class RemoteFailure(NamedTuple):
    """An exception that travels: bytes that were test-loaded on the worker, and text."""

    type_name: str
    message: str
    traceback_text: str
    pickled: bytes | None


class Header(NamedTuple):
    """First return of ``worker.run``: plain types only."""

    job: str
    outcome: Outcome
    lease_state: Literal["idle", "draining", "gone"]  #: gone: take no more jobs to this lease
    value: bytes | None  #: the pickled value when it is small; None: fetch the second return
    error: RemoteFailure | None
    received_at: float  #: time.time() when run() was entered
    started_at: float  #: time.time() right before the first user instruction; 0 if never
    ended_at: float  #: time.time() right after the last
    bind_s: float  #: time spent on code, dependencies and environment
    cancel_reason: str = ""  #: as in ``Word``, where the outcome is cancelled or timeout


def pack_call(fence: Fence, call: JobCall, nested: bool = False) -> bytes:
    """The one argument of ``worker.run`` besides references.

    Ray pickles each argument on its own, and plain bytes fastest by far: as separate named tuples
    the call would cost half as much again. ``nested`` says that the last of the references is the
    list of those that lie inside the arguments.
    """
    return pickle.dumps((tuple(fence), tuple(call), nested), 5)


def unpack_call(packed: bytes) -> tuple[Fence, JobCall, bool]:
    fence, call, nested = pickle.loads(packed)
    return Fence(*fence), JobCall(*call), nested


def pack_header(header: Header) -> bytes:
    error = None if header.error is None else tuple(header.error)
    return pickle.dumps((*header[:4], error, *header[5:]), 5)


def unpack_header(packed: bytes) -> Header:
    header = Header(*pickle.loads(packed))
    return header if header.error is None else header._replace(error=RemoteFailure(*header.error))


class WordNews(NamedTuple):
    """One change seen by a warden; ages in seconds, since clocks of nodes differ.

    ``orphaned`` is about the node (``worker`` is ""): its raylet has ended, and soon all of it.
    """

    kind: Literal["idle", "busy", "ended", "exited", "orphaned"]
    worker: str
    fence: Fence
    age_s: float
    detail: str = ""


class WardenWorker(NamedTuple):
    """One worker as a warden hands it to a controller that adopts it."""

    spec: WorkerSpec
    handle: Any  #: Ray actor handle
    word: Word
    age_s: float
    gpu_ids: tuple[str, ...]
    alive: bool = True  #: False: its process ended and what it left could not be swept yet


@dataclass(frozen=True)
class WardenState:
    node_id: str
    node_ip: str
    words_dir: str
    workers: tuple[WardenWorker, ...]
    cursor: int = 0  #: where ``watch`` goes on from this state


class Settled(NamedTuple):
    """What a warden knows of one job after a lost reply or a dead worker."""

    started: bool | None
    running: bool
    alive: bool  #: the worker's process lives
    stopped: str = ""  #: why the job was to be stopped when it (or its worker) ended, or ""
    end: str = ""  #: how the worker's process ended, or why it is being ended


class JobRecord(NamedTuple):
    """One finished job in a worker's ring (read by ``firepool explain``)."""

    job: str
    name: str
    caller: str
    source: str
    outcome: str
    worker: str
    submitted_at: float
    received_at: float
    started_at: float
    ended_at: float


@dataclass(frozen=True)
class SyncRequest:
    """A client's whole situation; the only call a client makes besides tether and leave."""

    client: str
    seq: int
    held: tuple[LeaseId, ...]
    acked: tuple[int, int]
    demands: tuple[Demand, ...]
    parent: LeaseId | None = None
    blocked: bool = False
    about: dict[str, Any] = field(default_factory=dict)  #: pid, node, ray job: for people
    #: cumulative per source: (jobs, {log bucket: count}) of start latency, see observe.histogram
    served: dict[str, tuple[int, dict[int, int]]] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerAddress:
    """How a client reaches a granted worker."""

    worker: str
    handle: Any
    warden: Any
    node_id: str
    lane: str
    profile: str


@dataclass(frozen=True)
class SyncReply:
    """News for one client; ``superseded`` means a newer sync took the poll over."""

    epoch: int
    grants: tuple[Grant, ...] = ()
    addresses: tuple[WorkerAddress, ...] = ()
    revoked: tuple[LeaseId, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    superseded: bool = False
