"""The pool's worker: a plain Ray actor that runs one job at a time on its main thread.

Created and promoted by the controller's effects, called by clients (``run``, ``replay``). It
owns idle -> busy -> idle in its lease word; everything else in the word is the warden's. Nothing
here chooses jobs or callers. ``run`` never raises: an error on its header therefore means that
Ray could not resolve an argument.

Theory of operation of ``run``: check the lease and flip to busy under the word's lock; load the
function and its arguments and call it, armed for stop signals; put the process back as it was
(the border); pickle the value, armed again; flip to idle. The flip decides between an outcome
and a cancel: what was marked before it ends as cancelled, what comes later finds no such job.
The word says ``replying`` until Ray has stored the outcome, so that nobody kills the worker
before that.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from time import CLOCK_BOOTTIME, clock_gettime, monotonic, sleep, time
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError

from firepool_ray.config.kubernetes import DEVICE_LOCKS
from firepool_ray.core.model import Caller, Fence, LeaseId
from firepool_ray.errors import InternalError, JobCancelled, JobTimeout, StaleEpoch
from firepool_ray.runtime import context, device, gpu, leasing, processes, words
from firepool_ray.runtime.execution import Execution, Executor, failed
from firepool_ray.runtime.guard import Guard
from firepool_ray.runtime.protocol import (
    Header,
    JobCall,
    JobRecord,
    Promotion,
    Word,
    WorkerReady,
    WorkerSpec,
    pack_header,
    unpack_call,
)
from firepool_ray.runtime.records import Ring, ring_path

#: How long a promotion waits for the device's last user to be gone.
DEVICE_WAIT_S = 2.0
#: The same where that may be in another pod, given up while its processes still end. Less than a
#: promotion may take at all.
POD_WAIT_S = 20.0
#: A reply up to this size is kept until the next job, for clients that lost it.
REPLY_KEPT_BYTES = 64 << 10

_REGISTER_TRIES = 5
_KILL_WAIT_S = 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_log = logging.getLogger(__name__)


class Reply(tuple[bytes, Any]):
    """The two returns of ``run``. Ray drops it once both are stored, which ends ``replying``."""

    on_stored: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.on_stored is not None:
            self.on_stored()


class PoolWorker:
    """One worker process. Its constructor raises where it cannot become a sound standby."""

    def __init__(self, spec: WorkerSpec, warden: Any) -> None:
        gpu.hide()
        entered = monotonic()
        self._spec = spec
        self._pid = os.getpid()
        self._pid_start = processes.start_of(self._pid)
        self._device_lock: int | None = None
        self._caller = Caller("", "")
        self._deps = ""
        self._kept: tuple[str, bytes, Any] | None = None  #: job and reply of the last one
        _prepare_process(spec)
        device.check(spec.device_lock_path)
        runtime = ray.get_runtime_context()
        self._gpu_ids = tuple(map(str, runtime.get_accelerator_ids().get("GPU", ())))
        fresh = leasing.fresh_word(spec.epoch, self._pid, self._pid_start, monotonic())
        try:
            self._ring = Ring(ring_path(spec.words_dir, spec.worker), spec.worker, create=True)
            words.write_spec(spec, self._gpu_ids)
            self._word = words.WordFile.create(words.word_path(spec.words_dir, spec.worker), fresh)
            guard = Guard(self._word)
            guard.install()
            self._executor = Executor(guard, words.code_dir(spec.words_dir, spec.worker))
            self._register(warden, runtime.current_actor)
        except BaseException:
            words.remove_files(spec.words_dir, spec.worker)
            raise
        self._ready = WorkerReady(
            self._pid, self._pid_start, spec.node_id, self._gpu_ids, monotonic() - entered
        )

    def __repr__(self) -> str:
        spec = self._spec
        kind = "gpu" if spec.gpus else "cpu"
        return f"FirepoolWorker({kind} lane {spec.lane} slot {spec.slot})"

    def _register(self, warden: Any, own: Any) -> None:
        for attempt in range(_REGISTER_TRIES):
            try:
                ray.get(
                    warden.register.remote(self._spec.epoch, self._spec, own, self._gpu_ids),
                    timeout=30,
                )
                return
            except ActorUnavailableError:  # the warden restarts just now
                if attempt == _REGISTER_TRIES - 1:
                    raise
                sleep(0.5)

    def ready(self) -> WorkerReady:
        return self._ready

    def promote(self, promotion: Promotion) -> WorkerReady:
        """Become the active worker of the device, for one caller. Idempotent per fence.

        Raises ``StaleEpoch``, ``DeviceBusy``, ``ValueError`` for a name that does not fit the
        word, ``RuntimeError`` if this worker cannot be promoted (any more). It stays as it was.
        """
        word = self._word.read()
        self._check_epoch(promotion.epoch, word)
        if word.state == "idle" and word.fence == promotion.fence:
            return self._ready
        _check_standby(word)
        caller = promotion.caller
        words.check_texts(
            queue=caller.queue, caller=caller.name, client=promotion.client, deps=promotion.deps
        )
        touched = gpu.cuda_touched()
        if touched:
            raise RuntimeError(f"the standby cannot be shown a GPU any more: {touched}")
        path = self._spec.device_lock_path
        wait_s = POD_WAIT_S if path.startswith(f"{DEVICE_LOCKS}/") else DEVICE_WAIT_S
        lock = device.take(path, self._spec.worker, wait_s)
        try:
            gpu.show(promotion.gpu_ids, promotion.topology.cpus)
            with self._word.locked() as word:
                self._check_epoch(promotion.epoch, word)
                new = leasing.promoted(word, promotion, monotonic())
                if new is None:
                    _check_standby(word)
                    raise RuntimeError("unreachable: a standby is always promotable")
                self._word.write(new)
        except BaseException:
            gpu.hide()
            os.close(lock)
            raise
        self._device_lock = lock
        self._caller, self._deps = caller, promotion.deps
        return self._ready

    def _check_epoch(self, epoch: int, word: Word) -> None:
        newest = max(word.epoch, words.read_epoch(self._spec.words_dir))
        if epoch < newest:
            raise StaleEpoch(epoch, newest)

    @ray.method(num_returns=2)
    def run(self, packed: bytes, *refs: Any) -> Reply:
        """Run one job under a lease: ``pack_call`` in, ``pack_header`` and the value out.

        The value is for ``job.ref``. References at the top level were resolved by Ray; those
        inside of the arguments come as a list, which is the last of ``refs``.
        """
        received = time()
        fence, call, has_nested = unpack_call(packed)
        try:
            self._word.replying = False  # this thread is back: the last reply is stored
            return self._run(fence, call, has_nested, refs, received)
        except BaseException as error:
            # Not user code's doing in its own job: an asynchronous exception from a thread that an
            # earlier job left behind, or a bug of ours. The lease must come back all the same.
            broken_off = error
        while True:  # a timer of the job may still be on: nothing else comes before it is off
            try:
                self._executor.restore()
                break
            except BaseException:  # its handler again
                continue
        return self._recover(fence, call, received, broken_off)

    def _run(
        self, fence: Fence, call: JobCall, has_nested: bool, refs: tuple[Any, ...], received: float
    ) -> Reply:
        if not self._executor.has_code(call):
            word = self._word.read()
            holds = word.state == "idle" and word.fence == fence
            return _nothing_ran(call, "need_code" if holds else "refused", received)
        if not self._begin(fence, call):
            return _nothing_ran(call, "refused", received)
        self._kept = None
        born = int(clock_gettime(CLOCK_BOOTTIME) * _TICKS_PER_S)
        lease = LeaseId(self._spec.worker, fence)
        context.enter_job(
            context.JobContext(call.job, lease, self._spec.profile, self._caller, self._deps)
        )
        nested = refs[-1] if has_nested else ()
        done = self._executor.execute(call, nested, refs[:-1] if has_nested else refs)
        context.leave_job()
        marked = done.outcome == "cancelled" or self._word.read().cancel == call.job
        if marked:
            self._end_children(born)
        state, reason = self._finish(call)
        if reason and not marked:
            self._end_children(born)
        return self._reply(fence, call, done, state, reason, received)

    def _begin(self, fence: Fence, call: JobCall) -> bool:
        word_file = self._word
        word_file.acquire()
        try:
            word = leasing.begun(word_file.read(), fence, call.job, monotonic(), call.timeout_s)
            if word is not None:
                word_file.write(word)
        finally:
            word_file.release()
        return word is not None

    def _finish(self, call: JobCall) -> tuple[str, str]:
        """Flip the word; returns its state and why the job was to stop, or ""."""
        word_file = self._word
        word_file.acquire()
        try:
            word = word_file.read()
            reason = word.cancel_reason if word.cancel == call.job else ""
            after = leasing.finished(word, monotonic())
            word_file.replying = True
            word_file.write(after)
        finally:
            word_file.release()
        return after.state, reason

    def _end_children(self, born: int) -> None:
        left = processes.kill_own_since(born, _KILL_WAIT_S)
        if left:
            _log.warning("processes of a stopped job did not end: %s", [p.pid for p in left])

    def _reply(
        self, fence: Fence, call: JobCall, done: Execution, state: str, reason: str, received: float
    ) -> Reply:
        outcome, failure, error, encoded = done.outcome, done.failure, done.error, done.encoded
        if outcome == "cancelled":
            reason = reason or "cancelled"
        if reason:
            outcome = "timeout" if reason == "timeout" else "cancelled"
            failure, error = failed(call.name, _stop_error(call, reason))
            encoded = None
        header = Header(
            job=call.job,
            outcome=outcome,
            lease_state="idle" if state == "idle" else "gone",
            value=encoded.inline if encoded is not None else None,
            error=failure,
            received_at=received,
            started_at=done.started_at,
            ended_at=done.ended_at,
            bind_s=max(0.0, done.started_at - received) if done.started_at else 0.0,
            cancel_reason=reason,
        )
        packed = pack_header(header)
        value = encoded.stored if encoded is not None else error
        reply = Reply((packed, value))
        if encoded is None or encoded.nbytes <= REPLY_KEPT_BYTES:
            self._kept = (call.job, packed, value)
        reply.on_stored = self._stored
        self._record(fence, call, header)
        if state != "idle":
            words.ring_bell(self._spec.words_dir)
        return reply

    def _stored(self) -> None:
        self._word.replying = False
        if self._word.read().state == "revoked":
            words.ring_bell(self._spec.words_dir)

    def _record(self, fence: Fence, call: JobCall, header: Header) -> None:
        self._ring.append(
            fence,
            JobRecord(
                call.job,
                call.name,
                str(self._caller),
                call.source,
                header.outcome,
                self._spec.worker,
                call.submitted_at,
                header.received_at,
                header.started_at,
                header.ended_at,
            ),
        )

    def _recover(self, fence: Fence, call: JobCall, received: float, error: BaseException) -> Reply:
        _log.error("job %s: unexpected %r outside of its code", call.job, error, exc_info=error)
        context.leave_job()
        word = self._word.read()
        if word.job != call.job:
            return _nothing_ran(call, "refused", received)
        problem = InternalError(f"{call.name} was broken off by {type(error).__name__}: {error}")
        failure, value = failed(call.name, problem)
        now = time()
        done = Execution("error", None, failure, value, now, now)
        state, reason = self._finish(call)
        return self._reply(fence, call, done, state, reason, received)

    @ray.method(num_returns=2)
    def replay(self, job: str) -> tuple[bytes, Any]:
        """The last reply again, for a client that lost it. Outcome "refused": it is not kept."""
        if self._kept is not None and self._kept[0] == job:
            return self._kept[1:]
        header = Header(job, "refused", "gone", None, None, time(), 0.0, 0.0, 0.0)
        return pack_header(header), None


def _prepare_process(spec: WorkerSpec) -> None:
    os.environ.update(spec.env)
    os.environ[processes.MARKER] = words.word_path(spec.words_dir, spec.worker)
    os.environ["FIREPOOL_LANE"] = spec.lane
    gpu.hide()
    processes.adopt_orphans()
    for name in spec.preload:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise RuntimeError(
                f"profile {spec.profile!r}: preloading {name!r} failed: "
                f"{type(error).__name__}: {error}"
            ) from error
    touched = gpu.cuda_touched()
    if touched:
        raise RuntimeError(
            f"profile {spec.profile!r}: preloading {', '.join(spec.preload)} initialised CUDA "
            f"({touched}); such a standby could never see its GPU: do not preload it"
        )


def _check_standby(word: Word) -> None:
    if word.state != "standby":
        raise RuntimeError(f"only a standby can be promoted; this worker is {word.state}")


def _nothing_ran(call: JobCall, outcome: Any, received: float) -> Reply:
    state: Any = "idle" if outcome == "need_code" else "gone"
    header = Header(call.job, outcome, state, None, None, received, 0.0, 0.0, 0.0)
    return Reply((pack_header(header), None))


def _stop_error(call: JobCall, reason: str) -> Exception:
    if reason == "timeout":
        return JobTimeout(f"{call.name} ran longer than its {call.timeout_s:g} s and was stopped")
    if reason == "client_lost":
        return JobCancelled(f"{call.name} was stopped: the client that submitted it is gone")
    return JobCancelled(f"{call.name} was cancelled")
