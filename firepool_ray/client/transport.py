"""The client's only door to Ray: every ``.remote()`` of a client is in this module.

Called by ``client.engine`` and ``client.pool``. Nothing here decides anything: completions and
failures are handed on as plain values. Replies come on Ray's own threads.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import ray
import ray.util.client
from ray.actor import ActorHandle
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
)
from ray.util.client.common import ClientActorHandle

from firepool_ray.client.link import Link
from firepool_ray.config import PoolConfig
from firepool_ray.core.model import Caller, Fence
from firepool_ray.errors import ArgumentTooLarge, PoolUnavailable, WorkerLost
from firepool_ray.runtime import pool as pools
from firepool_ray.runtime import session
from firepool_ray.runtime.cluster import join_or_start
from firepool_ray.runtime.protocol import (
    Header,
    JobCall,
    Settled,
    SyncReply,
    SyncRequest,
    pack_call,
    unpack_header,
)

#: Below this the size of the object stores is not looked up.
SURELY_FITS_BYTES = 64 << 20
#: What a client asks of a living controller is answered within this.
ANSWER_S = 30.0
_ASK_AGAIN_S = 0.2
#: What Ray raises where a call cannot even be sent.
_UNSENT = (RayError, ConnectionError)

#: Called with the header, or with the error that took its place.
OnReply = Callable[[Any, BaseException | None], None]


class CallFailed(Exception):
    """The call could not be sent: Ray was shut down here, or its connection broke.

    Never an exception of a signal handler, which may come out of any call: those pass.
    """


class Connection(NamedTuple):
    """A pool that was found or started, and what was started for it."""

    transport: Transport
    config: PoolConfig
    started_pool: bool
    started_ray: bool


def connect(config: PoolConfig | None = None) -> Connection:
    """Find or start the pool; None: the embedded default. Raises ``PoolUnavailable``."""
    try:
        if config is None:
            controller, started_pool, started_ray = pools.ensure_pool()
        else:
            started_ray = join_or_start()
            started_pool = pools.find_pool() is None
            controller = pools.start_pool(config, embedded=True)
        spec = _settings_of(controller)
    except (RayError, GetTimeoutError, ConnectionError) as error:
        raise PoolUnavailable(
            f"the pool cannot be reached ({type(error).__name__}: {error}); is the Ray cluster up? "
            "See `ray status` and `ray list actors`"
        ) from error
    parsed = PoolConfig.from_dict(spec, "the pool's settings")
    return Connection(Transport(controller), parsed, started_pool, started_ray)


def _settings_of(controller: Any) -> dict[str, Any]:
    """Asks again where the answer is lost on its way."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        try:
            spec: dict[str, Any] = ray.get(controller.spec.remote(), timeout=ANSWER_S)
            return spec
        except ActorUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_ASK_AGAIN_S)


def disconnect(connection: Connection) -> None:
    """End what was started for this connection."""
    if connection.started_pool and ray.is_initialized():
        pools.stop_pool(connection.transport.controller)
    if connection.started_ray and ray.is_initialized():
        ray.shutdown()


def describe() -> dict[str, Any]:
    """The state of the running pool. Raises ``PoolUnavailable`` where there is none."""
    if not ray.is_initialized():
        raise PoolUnavailable("this process is not connected to Ray: call firepool_ray.start()")
    return session.describe()


def is_connected() -> bool:
    return bool(ray.is_initialized())


def fetch(ref: Any, timeout_s: float | None = None) -> Any:
    """The value behind a reference; a failed job's own error is raised as it is."""
    try:
        return ray.get(ref, timeout=timeout_s)
    except GetTimeoutError as error:
        raise TimeoutError(f"no value within {timeout_s} s; the job goes on") from error
    except RayTaskError as error:
        cause = getattr(error, "cause", None)
        raise cause if isinstance(cause, Exception) else error from None
    except (ObjectLostError, RayActorError) as error:
        raise WorkerLost(
            f"the job ended, but its value was lost with the node that held it: {error}", True
        ) from error


def is_ready(ref: Any, timeout_s: float | None = 0) -> bool:
    return bool(ray.wait([ref], timeout=timeout_s, fetch_local=False)[0])


class Transport:
    def __init__(self, controller: Any) -> None:
        self.controller = controller
        self.object_ref: type = ray.ObjectRef
        #: Ray's own reference counting must see these, so they never hide inside a pickle.
        self.ref_types: tuple[type, ...] = (ray.ObjectRef, ActorHandle)
        #: Under Ray Client, callbacks come on the thread that serves the connection itself, which
        #: must not be made to wait.
        self.is_remote = _is_remote()
        if self.is_remote:
            self.ref_types = (ray.ObjectRef, ActorHandle, ClientActorHandle)
        #: Set by the engine: runs work on a thread of ours.
        self.defer: Callable[[Callable[[], None]], None] | None = None
        self._tether: Any = None

    @contextlib.contextmanager
    def _sending(self) -> Iterator[None]:
        try:
            self._check_connection()
            yield
        except Exception as error:
            if isinstance(error, _UNSENT) or self.is_lost():
                raise CallFailed(self.first_line(error)) from error
            raise

    def _check_connection(self) -> None:
        if self.is_lost():  # a call would start a Ray of its own here
            raise ConnectionError("the connection to the cluster has ended")

    def is_lost(self) -> bool:
        """Whether Ray Client has given up its connection. It raises plain ``Exception`` then."""
        return self.is_remote and not _is_remote()

    def _notify(self, ref: Any, on_reply: OnReply) -> None:
        def done(future: Any) -> None:
            error = future.exception()
            on_reply(None if error is not None else future.result(), error)

        def hand_over(future: Any) -> None:
            defer = self.defer
            if defer is not None:
                defer(lambda: done(future))

        ref.future().add_done_callback(hand_over if self.is_remote else done)

    # -- jobs ---------------------------------------------------------------------------------

    def put(self, value: Any) -> Any:
        """Raises ``ArgumentTooLarge``, at once, where Ray would go on to spill to disk."""
        size = sum(len(buffer.raw()) for buffer in value[1]) + len(value[0])
        too_large = f"the arguments take {size / 1e6:.0f} MB, more than the object store can hold: "
        too_large += "pass less, or have the function load the data itself"
        if size > SURELY_FITS_BYTES and size > pools.largest_store_bytes():
            raise ArgumentTooLarge(too_large)
        try:
            return ray.put(value)
        except (ObjectStoreFullError, OutOfDiskError, RaySystemError) as error:
            raise ArgumentTooLarge(too_large) from error

    def run(
        self,
        link: Link,
        fence: Fence,
        call: JobCall,
        refs: Sequence[Any],
        nested: list[Any],
        name: str,
    ) -> tuple[Any, Any]:
        """Send a job; returns the references of its header and of its value.

        Somebody must ``listen`` to the header, or ``take`` it. Raises ``CallFailed``.
        """
        with self._sending():
            method = link.call(name)
            if nested:
                header, value = method.remote(pack_call(fence, call, True), *refs, nested)
            else:
                header, value = method.remote(pack_call(fence, call), *refs)
        return header, value

    def listen(self, header: Any, on_reply: OnReply) -> None:
        """Have ``on_reply`` called on Ray's thread once the reply is there."""
        with self._sending():
            self._notify(header, on_reply)

    def take(self, header: Any, timeout_s: float, on_reply: OnReply) -> bool:
        """Wait for the reply here, which saves a change of threads; False if it does not come."""
        try:
            reply = ray.get(header, timeout=timeout_s)
        except GetTimeoutError:
            return False
        except RayError as error:
            on_reply(None, error)
        else:
            on_reply(reply, None)
        return True

    def hush(self, ref: Any) -> None:
        """Take note of a failed job's value, else Ray prints it as an error nobody looked at."""
        with contextlib.suppress(*_UNSENT):
            self._notify(ref, lambda value, error: None)

    def replay(self, link: Link, job: str) -> tuple[Any, Any]:
        """Ask for the last reply again; references as from ``run``."""
        with self._sending():
            header, value = link.address.handle.replay.options(num_returns=2).remote(job)
        return header, value

    def are_ready(self, refs: Sequence[Any], timeout_s: float = 0) -> set[Any]:
        """Those of the references whose objects exist, as values or as errors."""
        distinct = list(dict.fromkeys(refs))
        ready, _ = ray.wait(
            distinct, num_returns=len(distinct), timeout=timeout_s, fetch_local=False
        )
        return set(ready)

    def any_ready(self, refs: Sequence[Any], timeout_s: float) -> set[Any]:
        """Like ``are_ready``, as soon as there is one."""
        return set(ray.wait(list(refs), num_returns=1, timeout=timeout_s, fetch_local=False)[0])

    # -- the warden of a lease ----------------------------------------------------------------

    def cancel(self, link: Link, job: str, on_answer: Callable[[bool], None]) -> None:
        with self._sending():
            ref = link.address.warden.cancel.remote(link.address.worker, job)
            self._notify(ref, lambda answer, error: on_answer(error is None and bool(answer)))

    def settle(
        self, link: Link, fence: Fence, job: str, on_answer: Callable[[Settled | None, bool], None]
    ) -> None:
        """Answers None where the warden cannot be reached, and whether asking again may help."""

        def done(answer: Any, error: BaseException | None) -> None:
            on_answer(answer, error is None or self.may_answer_yet(error))

        with self._sending():
            ref = link.address.warden.settle.remote(link.address.worker, fence, job)
            self._notify(ref, done)

    def abandon(self, link: Link, fence: Fence, job: str) -> None:
        with self._sending():
            link.address.warden.kill_worker.remote(link.address.worker, fence, job)

    # -- the controller -----------------------------------------------------------------------

    def tether(self, client: str) -> None:
        """Let the controller notice the end of this process."""
        with self._sending():
            self._tether = self.controller.tether.remote(client)
            self.controller.watch_client.remote(client, [self._tether])

    def sync(self, request: SyncRequest, on_answer: Callable[[Any], None]) -> None:
        """State the situation; ``on_answer`` hears, on Ray's thread, what to ``collect``."""
        with self._sending():
            flag, reply = self.controller.sync.options(num_returns=2).remote(request)
            self._notify(flag, lambda value, error: on_answer(reply))

    def collect(self, ref: Any) -> SyncReply:
        """Raises ``PoolUnavailable`` where the controller could not answer."""
        try:
            self._check_connection()
            reply: SyncReply = ray.get(ref)
        except RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, PoolUnavailable):
                raise cause from None
            raise PoolUnavailable(f"its controller failed: {error}") from error
        except Exception as error:
            if isinstance(error, _UNSENT) or self.is_lost():
                raise PoolUnavailable(self.first_line(error)) from error
            raise
        return reply

    def find_again(self) -> bool:
        """After the controller was lost: whether there is one, perhaps another."""
        connected = ray.is_initialized() and not self.is_lost()
        controller = pools.find_pool() if connected else None
        if controller is not None:
            self.controller = controller
        return controller is not None

    def leave(self, client: str, timeout_s: float) -> None:
        """Say goodbye, so that the leases are free at once and not after the tether breaks."""
        if ray.is_initialized():
            with contextlib.suppress(RayError, GetTimeoutError):
                ray.get(self.controller.leave.remote(client), timeout=timeout_s)

    def closing(self, caller: Caller) -> None:
        with self._sending():
            self.controller.closing.remote(caller.queue, caller.name)

    def about(self) -> dict[str, Any]:
        """What people are told of this client."""
        context = ray.get_runtime_context()
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "node": context.get_node_id(),
            "ray_job": context.get_job_id(),
        }

    def default_caller(self) -> str:
        return f"job-{ray.get_runtime_context().get_job_id()}"

    def in_ray_task(self) -> bool:
        """Whether this process runs Ray tasks, not an actor or a driver."""
        if self.is_remote:
            return False
        context = ray.get_runtime_context()
        in_worker = ray._private.worker.global_worker.mode == ray.WORKER_MODE
        return in_worker and context.get_actor_id() is None

    # -- reading replies ----------------------------------------------------------------------

    @staticmethod
    def header_of(reply: bytes) -> Header:
        return unpack_header(reply)

    @staticmethod
    def fetcher(ref: Any) -> Callable[[], Any]:
        return functools.partial(fetch, ref)

    @staticmethod
    def is_argument_failure(error: BaseException) -> bool:
        """Whether Ray could not resolve a reference of the call: ``run`` itself never raises."""
        return isinstance(error, RayTaskError) or (
            isinstance(error, RayError) and not isinstance(error, (RayActorError, RaySystemError))
        )

    @staticmethod
    def may_answer_yet(error: BaseException) -> bool:
        """Whether the actor lives, as far as is known: only the call or its reply was lost."""
        return isinstance(error, ActorUnavailableError)

    @staticmethod
    def cause_of(error: BaseException) -> BaseException:
        """What the task behind a failed reference raised."""
        cause = getattr(error, "cause", None)
        while isinstance(cause, RayTaskError) and isinstance(cause.cause, Exception):
            cause = cause.cause
        return cause if isinstance(cause, Exception) else error

    @staticmethod
    def first_line(error: BaseException) -> str:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _is_remote() -> bool:
    """Whether this process talks to the cluster through a Ray Client server (``ray://``)."""
    client: Any = ray.util.client.ray
    return bool(client.is_connected())
