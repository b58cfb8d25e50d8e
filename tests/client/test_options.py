"""Options are checked when they are stated."""

from __future__ import annotations

import pytest

import firepool_ray as fp
from firepool_ray.client.options import Options
from firepool_ray.errors import UnknownName, UsageError


def test_an_unknown_option_lists_the_valid_ones():
    with pytest.raises(UnknownName, match="Did you mean 'timeout_s'") as raised:
        fp.options(timeout=3)
    assert raised.value.valid == (
        "caller",
        "env",
        "max_retries",
        "priority",
        "profile",
        "queue",
        "queue_timeout_s",
        "timeout_s",
    )


@pytest.mark.parametrize(
    "given",
    [
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": float("nan")},
        {"queue_timeout_s": float("inf")},
        {"queue_timeout_s": "3"},
        {"timeout_s": True},
        {"max_retries": -1},
        {"max_retries": 1.5},
        {"priority": "high"},
        {"caller": "a b"},
        {"caller": ""},
        {"queue": "../x"},
        {"profile": 3},
        {"env": {"A": 1}},
        {"env": {"A=B": "1"}},
        {"env": ["A"]},
    ],
)
def test_bad_values_are_refused_by_name(given):
    with pytest.raises(UsageError, match=next(iter(given))):
        fp.options(**given)


def test_options_build_on_each_other_and_a_later_change_does_not_reach_them():
    env = {"B": "2", "A": "1"}
    options = Options.of({"env": env, "priority": 1})
    env["C"] = "3"
    assert options.env_items == (("A", "1"), ("B", "2"))
    changed = options.but({"priority": 5})
    assert (changed.priority, changed.env_items) == (5, options.env_items[:2])
