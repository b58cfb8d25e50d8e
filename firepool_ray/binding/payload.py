"""Pickles that cross between a client and a worker, in both directions.

Called by the client (functions, arguments) and by the worker (values). Big buffers leave the
stream out of band, so that they are copied once; Ray's references leave it too, so that Ray
itself counts them: a reference hidden inside opaque bytes would be released while it travels.
No Ray here: the caller says which types are references.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle

from firepool_ray.binding.culprit import find_culprit
from firepool_ray.errors import NotPicklable

#: Smaller buffers stay in the stream: below this, bookkeeping costs more than the copy.
OUT_OF_BAND_BYTES = 4096

RefTypes = type | tuple[type, ...]
Buffer = bytes | bytearray | memoryview | pickle.PickleBuffer


class Payload(NamedTuple):
    """One pickled object. ``buffers`` are views of the object's own memory, not copies."""

    data: bytes
    buffers: list[pickle.PickleBuffer]
    refs: list[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the stream and its buffers; what lies behind ``refs`` does not count."""
        return len(self.data) + sum(buffer.raw().nbytes for buffer in self.buffers)


class RefSlot(NamedTuple):
    """Stands for a top-level argument that Ray resolves: element ``place`` of the call's refs."""

    place: int


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    def __init__(self, file: io.BytesIO, buffer_callback: Callable[[Any], bool] | None) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)


class _RefPickler(_Pickler):
    def __init__(
        self,
        file: io.BytesIO,
        buffer_callback: Callable[[Any], bool] | None,
        ref_types: RefTypes,
    ) -> None:
        super().__init__(file, buffer_callback)
        self._ref_types = ref_types
        self._index_of: dict[int, int] = {}
        self.refs: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, self._ref_types):
            return None
        index = self._index_of.get(id(obj))
        if index is None:
            index = self._index_of[id(obj)] = len(self.refs)
            self.refs.append(obj)
        return index


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, buffers: Sequence[Buffer], refs: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers)
        self._refs = refs

    def persistent_load(self, pid: Any) -> Any:
        return self._refs[pid]


def dumps(obj: Any, ref_types: RefTypes = (), *, out_of_band: bool = True) -> Payload:
    """Pickle ``obj``; its references and big buffers are handed out beside the stream.

    Raises ``NotPicklable``, which names the object in the way.
    """
    buffers: list[pickle.PickleBuffer] = []

    def keep_in_stream(buffer: pickle.PickleBuffer) -> bool:
        try:
            small = buffer.raw().nbytes < OUT_OF_BAND_BYTES
        except BufferError:  # not contiguous: it has no raw form
            return True
        if not small:
            buffers.append(buffer)
        return small

    callback = keep_in_stream if out_of_band else None
    file = io.BytesIO()
    pickler: Any = _RefPickler(file, callback, ref_types) if ref_types else _Pickler(file, callback)
    try:
        pickler.dump(obj)
    except Exception as error:  # a reducer may raise anything; it is kept as the cause
        raise NotPicklable(find_culprit(obj, _travels(ref_types), error)) from error
    return Payload(file.getvalue(), buffers, pickler.refs if ref_types else [])


def _travels(ref_types: RefTypes) -> Callable[[Any], bool]:
    def travels(obj: Any) -> bool:
        pickler = _RefPickler(io.BytesIO(), None, ref_types)
        try:
            pickler.dump(obj)
        except Exception:  # whatever it raises, it does not travel
            return False
        return True

    return travels


def loads(data: bytes, buffers: Sequence[Buffer] = (), refs: Sequence[Any] = ()) -> Any:
    """The object of a ``Payload``. Arrays are views of ``buffers``, read-only if these are."""
    if refs:
        return _Unpickler(data, buffers, refs).load()
    return pickle.loads(data, buffers=buffers)


class Prepickled:
    """A value that is pickled already: pickling the wrapper embeds it, loading yields the value.

    Handed to Ray as a return value it costs no second pickling, and Ray still sees the buffers
    (stored without a copy on the reader's side) and the references.
    """

    __slots__ = ("buffers", "data", "refs")

    def __init__(
        self, data: bytes, buffers: Sequence[Buffer] = (), refs: Sequence[Any] = ()
    ) -> None:
        self.data = data
        self.buffers = buffers
        self.refs = refs

    def __reduce__(self) -> tuple[Any, ...]:
        buffers = [pickle.PickleBuffer(buffer) for buffer in self.buffers]
        return (loads, (self.data, buffers, list(self.refs)))


def fill_slots(
    args: Sequence[Any], kwargs: Mapping[str, Any], refs: Sequence[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with every top-level ``RefSlot`` replaced by the object that Ray resolved."""
    if not refs:
        return tuple(args), dict(kwargs)

    def fill(value: Any) -> Any:
        return refs[value.place] if type(value) is RefSlot else value

    return tuple(map(fill, args)), {name: fill(value) for name, value in kwargs.items()}


def call_with(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``fn``; for functions that travel among the arguments since they hold references."""
    return fn(*args, **kwargs)
