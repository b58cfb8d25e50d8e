"""One job on a worker: load, call, put the process back, encode. What ``run`` is made of.

Used by ``PoolWorker`` only, on the main thread. Nothing that user code does escapes from
``execute``. Knows nothing of leases; of Ray only what ``outcome`` needs.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from os import getpid
from time import time
from typing import Any, NamedTuple, NoReturn

from ray.exceptions import RayTaskError

from firepool_ray.binding import payload
from firepool_ray.binding.code import apply_code, is_applied
from firepool_ray.binding.environ import Border, apply_env, restore_env
from firepool_ray.errors import BadArgument, BadResult, WorkerExit
from firepool_ray.runtime import guard as guard_module
from firepool_ray.runtime import outcome as outcome_module
from firepool_ray.runtime.guard import Guard
from firepool_ray.runtime.outcome import Encoded, as_ray_error, describe, encode_value, is_plain
from firepool_ray.runtime.protocol import JobCall, Outcome, RemoteFailure

#: Functions a worker keeps loaded.
FUNCTIONS_KEPT = 256

_exit = os._exit  # bound here: sandboxes for generated code remove it
_OWN_FILES = frozenset((__file__, guard_module.__file__, outcome_module.__file__))


class Execution(NamedTuple):
    """How a job went on the worker, before the lease word has its say."""

    outcome: Outcome  #: "cancelled" where it was told to stop, whatever the reason
    encoded: Encoded | None
    failure: RemoteFailure | None
    error: RayTaskError | None
    started_at: float
    ended_at: float


class Executor:
    """The functions, the border and the guard of one worker process."""

    def __init__(self, guard: Guard, code_dir: str) -> None:
        self._guard = guard
        self._code_dir = code_dir
        self._border = Border()
        self._pid = getpid()
        self._functions = _Functions()
        self._reset()

    def _reset(self) -> None:
        self._returned = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._origin: BaseException | None = None  #: what ``_error`` explains
        self._started_at = self._ended_at = 0.0

    def has_code(self, call: JobCall) -> bool:
        """Whether the worker has, or is given, everything that this job is made of."""
        return (call.fn is not None or call.fn_key in self._functions) and (
            call.code is not None or is_applied(call.code_key)
        )

    def restore(self) -> None:
        self._border.restore()

    def execute(self, call: JobCall, nested: Sequence[Any], refs: Sequence[Any]) -> Execution:
        self._reset()
        self._guard.new_job()
        before = apply_env(call.env) if call.env else None
        self._attempt(call, nested, refs)
        if before is not None:
            restore_env(before)
        try:
            return self._conclude(call)
        finally:
            self._value = self._error = self._origin = None

    def _attempt(self, call: JobCall, nested: Sequence[Any], refs: Sequence[Any]) -> None:
        """Run the job and the border. Handlers of the job may still fire between the two."""
        try:
            try:
                self._guard.call(call.job, self._load_and_call, call, nested, refs)
            except BaseException as error:
                self._error = error
            if getpid() != self._pid:
                _end_forked_child(self._error)
            self._border.restore()
        except BaseException as late:
            self._border.restore()  # first of all: the job's timer may go off again at once
            if getpid() != self._pid:
                _end_forked_child(late)
            if self._error is None:
                self._error = late.__context__ or late

    def _load_and_call(self, call: JobCall, nested: Sequence[Any], refs: Sequence[Any]) -> None:
        if (
            call.code is not None
            and not is_applied(call.code_key)
            and apply_code(call.code_key, call.code, self._code_dir)
        ):
            self._functions.unload()
        fn = self._functions.load(call.fn_key, call.fn)
        if call.args is None:
            data, buffers, inner = refs[0]
            refs = refs[1:]
        else:
            data, buffers, inner = call.args, call.buffers, nested
        args, kwargs = payload.loads(data, buffers, inner)
        if refs:
            args, kwargs = payload.fill_slots(args, kwargs, refs)
        del data, buffers
        self._started_at = time()
        try:
            self._value = fn(*args, **kwargs)
            self._returned = True
        finally:
            self._ended_at = time()

    def _conclude(self, call: JobCall) -> Execution:
        if self._guard.stopped:
            return self._stopped()
        failure: RemoteFailure | None = None
        error: RayTaskError | None = None
        outcome: Outcome = "ok"
        encoded: Encoded | None = None
        try:
            if self._returned:  # what a left-over handler raised afterwards does not count
                try:
                    encoded = self._guard.call(call.job, encode_value, self._value)
                except Exception as problem:
                    outcome = "bad_result"
                    self._error, self._origin = BadResult(_bad_result(call, problem)), problem
                if not is_plain(self._value):
                    self._border.restore()
            else:
                outcome = self._classify(call)
            if outcome != "ok":
                failure, error = self._guard.call(
                    call.job, failed, call.name, self._error, self._origin
                )
                self._border.restore()
        except BaseException as problem:  # told to stop, or user code in a reducer went astray
            self._border.restore()
            if not self._guard.stopped:
                outcome, encoded = "bad_result", None
                failure, error = failed(call.name, BadResult(_bad_result(call, problem)))
        if self._guard.stopped:
            return self._stopped()
        return Execution(outcome, encoded, failure, error, self._started_at, self._ended_at)

    def _classify(self, call: JobCall) -> Outcome:
        error = self._error
        if not self._started_at and not isinstance(error, (SystemExit, KeyboardInterrupt)):
            text = f"{call.name}: its function or arguments cannot be loaded on the worker"
            reason = f"{type(error).__name__}: {_text(error)}"
            self._error, self._origin = BadArgument(f"{text}: {reason}"), error
            return "bad_argument"
        if isinstance(error, SystemExit):
            text = f"{call.name} called sys.exit({error.code!r})"
        elif isinstance(error, KeyboardInterrupt):
            text = f"{call.name} raised KeyboardInterrupt"
        else:
            return "error"
        text += "; a job ends by returning or raising, its worker stays"
        self._error, self._origin = WorkerExit(text), error
        return "exit"

    def _stopped(self) -> Execution:
        return Execution("cancelled", None, None, None, self._started_at, self._ended_at)


class _Functions:
    """The last functions, by the hash of their pickle. Each keeps its globals: that is warm."""

    def __init__(self) -> None:
        #: Oldest use first. The function is None until it is (again) needed.
        self._known: OrderedDict[str, tuple[bytes, Callable[..., Any] | None]] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def load(self, key: str, data: bytes | None) -> Callable[..., Any]:
        known = self._known.get(key)
        if known is not None and known[1] is not None:
            self._known.move_to_end(key)
            return known[1]
        if data is None:
            if known is None:
                raise BadArgument(f"the worker does not have function {key} (any more)")
            data = known[0]
        fn: Callable[..., Any] = payload.loads(data)
        self._known[key] = (data, fn)
        self._known.move_to_end(key)
        while len(self._known) > FUNCTIONS_KEPT:
            self._known.popitem(last=False)
        return fn

    def unload(self) -> None:
        """Their modules were replaced: unpickle them anew when they are called again."""
        self._known = OrderedDict((key, (data, None)) for key, (data, _) in self._known.items())


def failed(
    name: str, error: BaseException, origin: BaseException | None = None
) -> tuple[RemoteFailure, RayTaskError]:
    """Header field and value of a job that ended with this error, for reason of ``origin``."""
    failure = describe(error, origin, skip_files=_OWN_FILES)
    return failure, as_ray_error(name, failure)


def _bad_result(call: JobCall, problem: BaseException) -> str:
    return f"the result of {call.name} cannot travel: {_text(problem)}"


def _text(error: BaseException | None) -> str:
    try:
        return str(error)
    except Exception as failure:  # its own __str__ failed
        return f"<{type(failure).__name__} in its __str__>"


def _end_forked_child(error: BaseException | None) -> NoReturn:
    """The job called ``os.fork`` and the child came back here: it must not go on as a worker."""
    code = 0
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(type(error), error, error.__traceback__)
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        _exit(code & 0xFF)
