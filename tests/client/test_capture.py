"""Functions are pickled once only while that is provably the same."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from firepool_ray.binding import payload
from firepool_ray.client.capture import _functions, capture, name_of
from firepool_ray.errors import NotPicklable


class Ref:
    """Stands in for Ray's ObjectRef."""


def take(fn, *args, **kwargs):
    stored = []

    def put(value):
        stored.append(value)
        return Ref()

    return capture(fn, args, kwargs, (Ref,), Ref, put, lambda ref: None), stored


def in_main(source: str, **space):
    """A function of a script, which travels by value."""
    space["__name__"] = "__main__"
    exec(source, space)
    return space["fn"], space


def keys_after(fn, space, **changes):
    """The function's key before and after globals change."""
    before = take(fn)[0].fn
    space.update(changes)
    after = take(fn)[0].fn
    return before, after


def test_an_unchanged_function_is_pickled_once():
    fn, space = in_main("import math\ndef fn():\n    return math.pi")
    before, after = keys_after(fn, space)
    assert before is after


@pytest.mark.parametrize(
    ("source", "space", "changes"),
    [
        ("def fn():\n    return N", {"N": 1}, {"N": 2}),
        ("def fn():\n    return later()", {}, {"later": len}),
        ("def g():\n    return N\ndef fn():\n    return g()", {"N": (1,)}, {"N": (2,)}),
        ("def fn():\n    return [N for _ in 'ab']", {"N": 1}, {"N": 2}),
    ],
)
def test_a_changed_global_is_noticed(source, space, changes):
    before, after = keys_after(*in_main(source, **space), **changes)
    assert before.key != after.key


def test_what_may_change_in_place_is_pickled_each_time():
    table = {"x": 1}
    fn, space = in_main("def fn():\n    return table", table=table)
    first = take(fn)[0].fn
    table["x"] = 2
    assert take(fn)[0].fn.key != first.key
    cell = [1]

    def closure():
        return cell

    first = take(closure)[0].fn
    cell.append(2)
    assert take(closure)[0].fn.key != first.key

    class Config:
        rate = 1

    Config.__module__, Config.__qualname__ = "__main__", "Config"
    fn, space = in_main("def fn():\n    return Config.rate", Config=Config)
    first = take(fn)[0].fn
    Config.rate = 2
    assert take(fn)[0].fn.key != first.key


def test_changed_code_and_defaults_are_noticed():
    fn, _ = in_main("def fn(a=1):\n    return a")
    keys = {take(fn)[0].fn.key}
    fn.__defaults__ = (2,)
    keys.add(take(fn)[0].fn.key)
    fn.__code__ = in_main("def fn(a=1):\n    return -a")[0].__code__
    keys.add(take(fn)[0].fn.key)
    assert len(keys) == 3


def test_the_cache_does_not_keep_functions_alive():
    fn, _ = in_main("def fn():\n    return 1")
    take(fn)
    assert fn in _functions._known
    size = len(_functions._known)
    del fn, _
    import gc

    gc.collect()
    assert len(_functions._known) < size


def test_arguments_are_pickled_apart_from_their_references():
    ref, nested = Ref(), Ref()
    call, stored = take(max, ref, [nested], key=ref)
    assert (call.refs, call.nested, stored) == ([ref, ref], [nested], [])
    args, kwargs = payload.loads(call.args, call.buffers, call.nested)
    assert args == (payload.RefSlot(0), [nested]) and kwargs == {"key": payload.RefSlot(1)}


@pytest.mark.parametrize(
    "big", [np.ones(100_000), b"x" * 200_000, [f"{n:0999}" for n in range(1000)]]
)
def test_big_arguments_go_through_the_store(big):
    call, stored = take(len, big, [Ref()])
    ((data, buffers, refs),) = stored
    assert call.args is None and len(call.refs) == 1 and call.nested == []
    if not isinstance(big, list):
        assert len(refs) == 1
    args, _ = payload.loads(data, buffers, refs)
    assert len(args[0]) == len(big)


def test_small_arrays_are_copied_at_once():
    array = np.ones(2000)
    call, _ = take(np.sum, array)
    array[:] = 5
    (taken,), _ = payload.loads(call.args, call.buffers)
    assert taken.sum() == 2000


def test_a_function_that_holds_references_travels_among_the_arguments():
    ref = Ref()
    call, _ = take(lambda x: (ref, x), 1)
    assert call.nested == [ref]
    assert payload.loads(call.fn.data) is payload.call_with
    (fn, x), _ = payload.loads(call.args, call.buffers, ["value"])
    assert fn(x) == ("value", 1)


def test_names_say_what_people_wrote():
    import functools

    assert name_of(functools.partial(max, 1)) == "max"
    assert name_of(lambda: 0) == "test_names_say_what_people_wrote.<lambda>"
    assert name_of(Ref()) == "Ref"


def test_plain_arguments_need_no_own_pickler():
    call, _ = take(max, 1, 2.5, "x", b"y", None)
    assert pickle.loads(call.args) == ((1, 2.5, "x", b"y", None), {})


def test_a_reference_type_is_never_pickled_by_accident():
    with pytest.raises(NotPicklable):
        take(max, (n for n in "ab"))
