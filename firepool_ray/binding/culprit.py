"""Which object, reached how, cannot be pickled: turns a bare TypeError into advice.

Called by ``binding.payload`` after a failure only, so it may be slow. It reads objects and never
changes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

_MAX_DEPTH = 12
_MAX_CHILDREN = 200


def find_culprit(obj: Any, travels: Callable[[Any], bool], error: BaseException) -> str:
    """A message naming the innermost object that does not travel and the path to it."""
    path, culprit = _descend(obj, travels)
    where = " -> ".join(path)
    reached = f" (reached by: {where})" if where else ""
    return (
        f"{_describe(culprit)} cannot be pickled{reached}: {type(error).__name__}: {error}. "
        "Create it inside the function, or pass plain data in its place."
    )


def _descend(obj: Any, travels: Callable[[Any], bool]) -> tuple[list[str], Any]:
    path: list[str] = []
    seen = {id(obj)}
    for _ in range(_MAX_DEPTH):
        for count, (label, child) in enumerate(_children(obj)):
            if count >= _MAX_CHILDREN:
                return path, obj
            if id(child) not in seen and not travels(child):
                seen.add(id(child))
                path.append(label)
                obj = child
                break
        else:
            return path, obj
    return path, obj


def _describe(obj: Any) -> str:
    name = getattr(obj, "__qualname__", None)
    kind = f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")
    return f"{kind} {name!r}" if isinstance(name, str) else f"an object of type {kind}"


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, FunctionType):
        yield from _function_children(obj)
    elif isinstance(obj, MethodType):
        yield f"self of method {obj.__name__!r}", obj.__self__
        yield f"function {obj.__name__!r}", obj.__func__
    elif isinstance(obj, functools.partial):
        yield "partial function", obj.func
        yield "partial arguments", obj.args
        yield "partial keywords", obj.keywords
    elif isinstance(obj, dict):
        for key, value in obj.items():
            yield f"key {key!r}", key
            yield f"item {key!r}", value
    elif isinstance(obj, (list, tuple, set, frozenset)):
        for index, item in enumerate(obj):
            yield f"item {index}", item
    elif not isinstance(obj, (type, ModuleType)):
        fields = getattr(obj, "__dict__", None)
        if isinstance(fields, dict):
            for key, value in fields.items():
                yield f"attribute {key!r}", value


def _function_children(fn: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        try:
            yield f"variable {name!r} of {fn.__qualname__!r}", cell.cell_contents
        except ValueError:  # a cell that was never filled
            continue
    for name in fn.__code__.co_names:
        if name in fn.__globals__:
            yield f"global {name!r} of {fn.__qualname__!r}", fn.__globals__[name]
    for value in fn.__defaults__ or ():
        yield f"default of {fn.__qualname__!r}", value
    for name, value in (fn.__kwdefaults__ or {}).items():
        yield f"default {name!r} of {fn.__qualname__!r}", value
