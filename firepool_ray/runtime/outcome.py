"""How a job's value or error travels: once pickled, inline where small, an error as an error.

Used by the worker only. The second return of ``run`` becomes ``job.ref``; for a failed job it is
a ``RayTaskError``, which Ray stores as an error, so that ``ray.get(job.ref)`` raises it.
"""

from __future__ import annotations

import pickle
import traceback
from types import AsyncGeneratorType, CoroutineType, GeneratorType, TracebackType
from typing import Any, NamedTuple

from ray import ObjectRef
from ray.exceptions import RayTaskError

from firepool_ray.binding import payload
from firepool_ray.errors import BadResult, RemoteError
from firepool_ray.runtime.protocol import RemoteFailure

#: Values up to this size travel in the header, so that ``result()`` needs no second fetch.
INLINE_BYTES = 8 << 10
#: A pickled exception beyond this travels as text only.
ERROR_BYTES = 256 << 10
_TEXT_CHARS = 64 << 10

_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_LAZY = {
    GeneratorType: "a generator; return list(...) of it",
    AsyncGeneratorType: "an async generator; collect it into a list",
    CoroutineType: "a coroutine; call it with asyncio.run(...) inside the function",
}


class Encoded(NamedTuple):
    """A value ready to travel."""

    inline: bytes | None
    stored: Any  #: what Ray stores for ``job.ref``
    nbytes: int


def is_plain(value: Any) -> bool:
    """Whether pickling it runs no code of anybody."""
    return type(value) in _PLAIN


def encode_value(value: Any) -> Encoded:
    """Raises ``BadResult`` or ``NotPicklable``, with what to return instead."""
    if type(value) in _PLAIN:
        size = len(value) if isinstance(value, (str, bytes)) else 0
        if size > INLINE_BYTES:
            return Encoded(None, value, size)
        data = pickle.dumps(value, protocol=5)
        return Encoded(data if len(data) <= INLINE_BYTES else None, value, len(data))
    lazy = _LAZY.get(type(value))
    if lazy is not None:
        if not isinstance(value, AsyncGeneratorType):
            value.close()
        raise BadResult(f"the function returned {lazy}")
    data, buffers, refs = payload.dumps(value, ObjectRef)
    small = not buffers and not refs and len(data) <= INLINE_BYTES
    stored = payload.Prepickled(data, buffers, refs)
    nbytes = len(data) + sum(buffer.raw().nbytes for buffer in buffers)
    return Encoded(data if small else None, stored, nbytes)


def describe(
    error: BaseException, origin: BaseException | None, *, skip_files: frozenset[str]
) -> RemoteFailure:
    """The error as it travels, with the traceback of ``origin``, without our frames at its top.

    Runs the error's own code, to see whether it can be rebuilt.
    """
    try:
        message = str(error)
    except Exception as failure:  # its own __str__ failed
        message = f"<no message: {type(failure).__name__} in its __str__>"
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    text = _traceback_text(origin or error, skip_files)
    return RemoteFailure(name, message[:_TEXT_CHARS], text[-_TEXT_CHARS:], _rebuildable(error))


def _traceback_text(error: BaseException, skip_files: frozenset[str]) -> str:
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in skip_files:
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except Exception as failure:  # its own __str__ or __cause__ failed
        return f"<no traceback: {type(failure).__name__} while it was formatted>"


def _rebuildable(error: BaseException) -> bytes | None:
    try:
        data = payload.dumps(error, out_of_band=False).data
        if len(data) <= ERROR_BYTES and type(payload.loads(data)) is type(error):
            return data
    except Exception:  # whatever its reducer raises: it travels as text
        return None
    return None


def as_ray_error(name: str, failure: RemoteFailure) -> RayTaskError:
    """The value of a failed job."""
    cause: BaseException | None = None
    if failure.pickled is not None:
        cause = payload.loads(failure.pickled)
    if not isinstance(cause, Exception):
        cause = RemoteError(failure.type_name, failure.message, failure.traceback_text)
    make: Any = RayTaskError  # has no annotations
    error: RayTaskError = make(name, failure.traceback_text, cause)
    return error
