"""The physics, the learner and the agent's tools, without Ray: they are plain functions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    folders = [str(EXAMPLES / "rl_rollouts"), str(EXAMPLES / "agent_tools")]
    sys.path[:0] = folders
    names = ("cartpole", "learner", "tools")
    yield {name: importlib.import_module(name) for name in names}
    for folder in folders:
        sys.path.remove(folder)
    for name in names:
        sys.modules.pop(name, None)


def test_one_step_against_the_equations_worked_by_hand(modules: dict[str, ModuleType]) -> None:
    # From rest and upright, pushed right: push = 10 / 1.1, pole falls left.
    push = 10 / 1.1
    spin_rate = -push / (0.5 * (4 / 3 - 0.1 / 1.1))
    acceleration = push - 0.05 * spin_rate / 1.1
    states = modules["cartpole"].advance(np.zeros((1, 4)), np.array([1], np.int8))
    np.testing.assert_allclose(states, [[0, 0.02 * acceleration, 0, 0.02 * spin_rate]])


def test_pushing_left_mirrors_pushing_right(modules: dict[str, ModuleType]) -> None:
    states = np.array([[0.1, -0.2, 0.03, 0.4]])
    right = modules["cartpole"].advance(states, np.array([1], np.int8))
    left = modules["cartpole"].advance(-states, np.array([0], np.int8))
    np.testing.assert_allclose(left, -right)


def test_a_rollout_is_laid_end_to_end_and_repeats_with_its_seed(
    modules: dict[str, ModuleType],
) -> None:
    cartpole = modules["cartpole"]
    policy = cartpole.Policy.random(np.random.default_rng(0))
    first, again = (cartpole.rollout(policy, (1, 2), 5) for _ in range(2))
    assert first.lengths.sum() == len(first.states) == len(first.actions)
    begins = np.concatenate([[0], np.cumsum(first.lengths)[:-1]])
    assert (np.abs(first.states[begins]) <= 0.05).all()
    ends = np.cumsum(first.lengths) - 1
    last = cartpole.advance(first.states[ends], first.actions[ends])
    assert cartpole.failed(last).all() and not cartpole.failed(first.states).any()
    np.testing.assert_array_equal(first.states, again.states)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_with_any_seed(modules: dict[str, ModuleType], seed: int) -> None:
    cartpole, learner = modules["cartpole"], modules["learner"].Learner(seed)
    means = []
    for iteration in range(25):
        rollouts = [cartpole.rollout(learner.policy, (seed, iteration, b), 16) for b in range(8)]
        means.append(np.concatenate([batch.lengths for batch in rollouts]).mean())
        learner.update(rollouts)
    assert means[0] < 30
    assert max(means[-3:]) > 150


def test_the_gradient_is_that_of_the_log_likelihood(modules: dict[str, ModuleType]) -> None:
    cartpole, learner = modules["cartpole"], modules["learner"]
    rng = np.random.default_rng(3)
    policy = cartpole.Policy.random(rng, hidden=5)
    states, actions, weights = rng.normal(size=(7, 4)), rng.integers(0, 2, 7), rng.normal(size=7)

    def objective(w2: np.ndarray) -> float:
        right = policy._replace(w2=w2).right(states)
        return float((np.log(np.where(actions == 1, right, 1 - right)) * weights).mean())

    slope = learner._gradient(policy, states, actions, weights).w2
    for i, bump in enumerate(np.eye(5) * 1e-6):
        numeric = (objective(policy.w2 + bump) - objective(policy.w2 - bump)) / 2e-6
        assert slope[i] == pytest.approx(numeric, rel=1e-4, abs=1e-9)


def test_the_tools_tell_what_went_wrong(modules: dict[str, ModuleType]) -> None:
    tools = modules["tools"]
    assert tools.evaluate_snippet("print(6 * 7)") == "42\n"
    assert "ZeroDivisionError" in tools.evaluate_snippet("1 / 0")
    verdict = tools.verify("def f(n): return n", [("f(1)", 1), ("f(2)", 3), ("g()", 0)])
    assert (verdict.passed, verdict.failed) == (1, 2)
    assert "f(2) is 2, expected 3" in verdict.report and "NameError" in verdict.report
