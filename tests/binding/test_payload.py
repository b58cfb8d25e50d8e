"""Pickles both ways: references and big buffers out of the stream, culprits named."""

from __future__ import annotations

import functools
import pickle
import threading

import numpy as np
import pytest

from firepool_ray.binding import payload
from firepool_ray.errors import NotPicklable


class Ref:
    """Stands in for Ray's ObjectRef."""

    def __reduce__(self):
        raise AssertionError("a reference must never be pickled into the stream")


def roundtrip(obj, ref_types=()):
    packed = payload.dumps(obj, ref_types)
    return payload.loads(packed.data, packed.buffers, packed.refs)


@pytest.mark.parametrize("value", [None, 0, "x", b"y", [1, {"a": (2.5, {3})}], ((), {})])
def test_plain_values_come_back(value):
    packed = payload.dumps(value)
    assert packed.buffers == [] and packed.refs == []
    assert payload.loads(packed.data) == value


def test_lambdas_and_closures_travel_by_value():
    factor = 3
    assert roundtrip(lambda x: x * factor)(4) == 12


def test_references_leave_the_stream_once_each():
    a, b = Ref(), Ref()
    packed = payload.dumps({"x": [a, b, a]}, (Ref,))
    assert packed.refs == [a, b]
    loaded = payload.loads(packed.data, packed.buffers, ["A", "B"])
    assert loaded == {"x": ["A", "B", "A"]}


def test_references_in_closures_are_found():
    ref = Ref()
    packed = payload.dumps(lambda: ref, (Ref,))
    assert packed.refs == [ref]
    assert payload.loads(packed.data, packed.buffers, ["resolved"])() == "resolved"


def test_big_buffers_leave_the_stream_without_a_copy_and_small_ones_stay():
    big = np.arange(100_000)
    small = np.arange(10)
    packed = payload.dumps((big, small))
    assert len(packed.buffers) == 1 and len(packed.data) < 2_000
    assert packed.nbytes >= big.nbytes
    assert np.shares_memory(np.frombuffer(packed.buffers[0], dtype=big.dtype), big)
    loaded_big, loaded_small = payload.loads(packed.data, [bytes(packed.buffers[0].raw())])
    assert np.array_equal(loaded_big, big) and np.array_equal(loaded_small, small)


def test_everything_stays_in_the_stream_when_asked():
    packed = payload.dumps(np.arange(100_000), out_of_band=False)
    assert packed.buffers == [] and len(packed.data) > 100_000


def test_arrays_that_are_not_contiguous_travel():
    array = np.arange(40_000).reshape(200, 200)[::2, ::3]
    assert np.array_equal(roundtrip(array), array)


def test_prepickled_loads_as_the_value_itself():
    value = {"array": np.arange(50_000), "text": "t"}
    packed = payload.dumps(value)
    wrapper = payload.Prepickled(packed.data, packed.buffers, packed.refs)
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(wrapper, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 1  # the array is still out of band, so Ray stores it without a copy
    loaded = pickle.loads(stream, buffers=buffers)
    assert loaded["text"] == "t" and np.array_equal(loaded["array"], value["array"])


def test_slots_are_filled_at_the_top_level_only():
    args, kwargs = payload.fill_slots(
        (payload.RefSlot(1), [payload.RefSlot(0)]), {"k": payload.RefSlot(0)}, ["zero", "one"]
    )
    assert args == ("one", [payload.RefSlot(0)])
    assert kwargs == {"k": "zero"}


def test_call_with_passes_everything_on():
    assert payload.call_with(dict, a=1) == {"a": 1}
    assert payload.call_with(max, 3, 5) == 5


class Holder:
    def __init__(self, thing):
        self.thing = thing

    def method(self):
        return self.thing


def closure_over(thing):
    return lambda: thing


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda lock: lock, []),
        (lambda lock: {"a": [1, lock]}, ["item 'a'", "item 1"]),
        (lambda lock: Holder(lock), ["attribute 'thing'"]),
        (lambda lock: Holder(lock).method, ["attribute 'thing'"]),
        (lambda lock: closure_over(lock), ["variable 'thing'"]),
        (lambda lock: functools.partial(max, lock), ["partial arguments", "item 0"]),
    ],
)
def test_the_culprit_is_named_with_the_path_to_it(make, path):
    with pytest.raises(NotPicklable) as raised:
        payload.dumps(make(threading.Lock()))
    message = str(raised.value)
    assert "_thread.lock" in message and "inside the function" in message
    for step in path:
        assert step in message
    assert isinstance(raised.value.__cause__, TypeError)


def test_a_reducer_that_raises_is_named():
    class Stubborn:
        def __reduce__(self):
            raise RuntimeError("not me")

    with pytest.raises(NotPicklable, match=r"Stubborn cannot be pickled.*RuntimeError: not me"):
        payload.dumps([Stubborn()])
