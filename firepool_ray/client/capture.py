"""What a submit takes with it: function and arguments, pickled at once.

Called by ``client.pool`` in the thread that submits. Afterwards nothing the caller changes can
reach the job. Functions are pickled once as long as that is provably the same.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import cloudpickle

from firepool_ray.binding import payload
from firepool_ray.binding.payload import RefSlot
from firepool_ray.client.job import Job
from firepool_ray.errors import UsageError

#: Arguments beyond this go through the object store: one copy, and none per retry.
INLINE_BYTES = 100 << 10

_PLAIN = frozenset((type(None), bool, int, float, str, bytes, complex))
_NO_ARGUMENTS = pickle.dumps(((), {}), 5)
#: Immutable leaves whose identity proves that a global still has its value.
_IMMUTABLE = (type(None), bool, int, float, str, bytes, complex, type(Ellipsis), range)


_ABSENT = object()


class Function(NamedTuple):
    key: str
    data: bytes
    refs: bool  #: it holds references and must travel among the arguments


class Capture:
    """One call, ready to travel. Kept until the job has ended, for retries."""

    __slots__ = ("args", "buffers", "deps", "fn", "nested", "refs")

    def __init__(
        self,
        fn: Function,
        args: bytes | None,
        buffers: tuple[bytes, ...],
        refs: list[Any],
        nested: list[Any],
        deps: list[tuple[int, Job]],
    ) -> None:
        self.fn = fn
        self.args = args
        self.buffers = buffers
        self.refs = refs  #: the call's references; a place in ``deps`` is filled in later
        self.nested = nested
        self.deps = deps  #: jobs among the arguments, by their index in ``refs``


def name_of(fn: Callable[..., Any]) -> str:
    """What people know the function by."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return str(name).replace("<locals>.", "")


def capture(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ref_types: tuple[type, ...],
    object_ref: type,
    put: Callable[[Any], Any],
    job_behind: Callable[[Any], Any],
) -> Capture:
    """Pickle a call. ``put`` stores big arguments; ``object_ref`` is resolved at the top level.

    ``job_behind`` tells the unfinished job that a reference belongs to, or None: such a job may
    still get another reference, when its reply is lost or it is retried.
    Raises ``NotPicklable`` and ``UsageError``.
    """
    if not callable(fn):
        raise UsageError(f"submit needs a function, not {type(fn).__name__}: submit(fn, *args)")
    function = _functions.pickle(fn, ref_types)
    if function.refs:
        args = (fn, *args)
        function = _functions.pickle(payload.call_with, ref_types)
    if not args and not kwargs:
        return Capture(function, _NO_ARGUMENTS, (), [], [], [])
    if not kwargs and all(type(arg) in _PLAIN for arg in args):
        data = pickle.dumps((args, kwargs), 5)
        if len(data) <= INLINE_BYTES:
            return Capture(function, data, (), [], [], [])
        return Capture(function, None, (), [put((data, [], []))], [], [])
    return _capture_any(function, args, kwargs, ref_types, object_ref, put, job_behind)


def _capture_any(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ref_types: tuple[type, ...],
    object_ref: type,
    put: Callable[[Any], Any],
    job_behind: Callable[[Any], Any],
) -> Capture:
    refs: list[Any] = []
    deps: list[tuple[int, Job]] = []

    def slot(arg: Any) -> Any:
        if isinstance(arg, object_ref):
            arg = job_behind(arg) or arg
        elif not isinstance(arg, Job):
            return arg
        if isinstance(arg, Job):
            deps.append((len(refs), arg))
        refs.append(arg)
        return RefSlot(len(refs) - 1)

    slotted = (tuple(map(slot, args)), {name: slot(arg) for name, arg in kwargs.items()})
    packed = payload.dumps(slotted, ref_types)
    if packed.nbytes <= INLINE_BYTES:
        buffers = tuple(bytes(buffer.raw()) for buffer in packed.buffers)
        return Capture(function, packed.data, buffers, refs, packed.refs, deps)
    stored = put((packed.data, packed.buffers, packed.refs))
    shifted = [(index + 1, job) for index, job in deps]
    return Capture(function, None, (), [stored, *refs], [], shifted)


class _Functions:
    """Pickled functions, reused while nothing that went into the pickle can have changed."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, tuple[_Proof, Function]] = WeakKeyDictionary()

    def pickle(self, fn: Callable[..., Any], ref_types: tuple[type, ...]) -> Function:
        if type(fn) is not FunctionType:
            return _pickle_function(fn, ref_types)
        known = self._known.get(fn)
        if known is not None and known[0].holds(fn):
            return known[1]
        function = _pickle_function(fn, ref_types)
        proof = _prove(fn)
        if proof is not None and not function.refs:
            self._known[fn] = (proof, function)
        return function


def _pickle_function(fn: Callable[..., Any], ref_types: tuple[type, ...]) -> Function:
    packed = payload.dumps(fn, ref_types, out_of_band=False)
    key = hashlib.blake2b(packed.data, digest_size=16).hexdigest()
    return Function(key, packed.data, bool(packed.refs))


class _Proof:
    """Names and the very objects they must still refer to for a pickle to be up to date."""

    __slots__ = ("bindings", "code", "defaults", "kwdefaults")

    def __init__(self, fn: FunctionType) -> None:
        self.code = fn.__code__
        self.defaults = fn.__defaults__
        self.kwdefaults = fn.__kwdefaults__
        self.bindings: list[tuple[dict[str, Any], str, Any]] = []

    def holds(self, fn: FunctionType) -> bool:
        if (
            fn.__code__ is not self.code
            or fn.__defaults__ is not self.defaults
            or fn.__kwdefaults__ is not self.kwdefaults
        ):
            return False
        return all(space.get(name, _ABSENT) is value for space, name, value in self.bindings)


def _prove(fn: FunctionType) -> _Proof | None:
    proof = _Proof(fn)
    found = proof.bindings
    if _is_importable(fn, found) or _add_bindings(fn, found, set()):
        return proof
    return None


def _is_importable(fn: FunctionType, found: list[tuple[dict[str, Any], str, Any]]) -> bool:
    """Whether it pickles by reference: as its module and name, whatever it does."""
    module = sys.modules.get(fn.__module__ or "")
    if module is None or fn.__module__ == "__main__":
        return False
    if cloudpickle.list_registry_pickle_by_value():
        return False
    if getattr(module, fn.__qualname__, None) is not fn:
        return False
    found.append((sys.modules, fn.__module__, module))
    found.append((vars(module), fn.__qualname__, fn))
    return True


def _add_bindings(
    fn: FunctionType, found: list[tuple[dict[str, Any], str, Any]], seen: set[int]
) -> bool:
    """Collect every global the function can reach; False where one could change in place."""
    seen.add(id(fn))
    if fn.__closure__ or fn.__dict__ or not _is_immutable(fn.__defaults__ or ()):
        return False
    if fn.__kwdefaults__:
        return False
    for name in _names_in(fn.__code__):
        if name not in fn.__globals__:
            # a builtin or an attribute's name; or a global that is defined later
            found.append((fn.__globals__, name, _ABSENT))
            continue
        value = fn.__globals__[name]
        found.append((fn.__globals__, name, value))
        if type(value) is FunctionType:
            if id(value) in seen or _is_importable(value, found):
                continue
            if not _add_bindings(value, found, seen):
                return False
        elif not (isinstance(value, ModuleType) or _is_immutable(value) or _is_installed(value)):
            return False
    return True


def _names_in(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names


def _is_immutable(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_immutable, value))
    return type(value) in _IMMUTABLE or type(value) is BuiltinFunctionType


def _is_installed(value: Any) -> bool:
    """A class that pickles by reference. One of ``__main__`` travels by value and may change."""
    if not isinstance(value, type) or value.__module__ == "__main__":
        return False
    module = sys.modules.get(value.__module__)
    return module is not None and getattr(module, value.__qualname__, None) is value


_functions = _Functions()
