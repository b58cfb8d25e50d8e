"""CartPole and a small policy, in numpy only: what a rollout job runs on its worker.

The physics is that of Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve
difficult learning control problems", IEEE Trans. SMC 13 (1983), with the constants, limits and the
Euler step of Gym's classic-control CartPole-v1: episodes of at most 500 steps, reward 1 per step.
Many episodes advance together, one row each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
TOTAL_MASS = CART_MASS + POLE_MASS
HALF_LENGTH = 0.5
POLE_MOMENT = POLE_MASS * HALF_LENGTH
FORCE = 10.0
STEP_S = 0.02
MAX_POSITION = 2.4
MAX_ANGLE = 12 * 2 * np.pi / 360
MAX_STEPS = 500

Floats = NDArray[np.float64]


class Policy(NamedTuple):
    """One hidden tanh layer and a logit for "push right"."""

    w1: Floats  # (4, hidden)
    b1: Floats  # (hidden,)
    w2: Floats  # (hidden,)
    b2: Floats  # ()

    @classmethod
    def random(cls, rng: np.random.Generator, hidden: int = 32) -> Policy:
        return cls(
            w1=rng.normal(0.0, 0.5, (4, hidden)),
            b1=np.zeros(hidden),
            w2=rng.normal(0.0, 0.05, hidden),
            b2=np.zeros(()),
        )

    def right(self, states: Floats) -> Floats:
        """Probability of pushing to the right, one per state."""
        logits = np.tanh(states @ self.w1 + self.b1) @ self.w2 + self.b2
        return 1.0 / (1.0 + np.exp(-logits))


class Rollout(NamedTuple):
    """Episodes laid end to end: episode i has ``lengths[i]`` steps."""

    states: Floats  # (steps, 4)
    actions: NDArray[np.int8]  # (steps,)
    lengths: NDArray[np.int64]  # (episodes,)


def advance(states: Floats, actions: NDArray[np.int8]) -> Floats:
    """The states one step later."""
    position, speed, angle, spin = states.T
    force = np.where(actions == 1, FORCE, -FORCE)
    cosine, sine = np.cos(angle), np.sin(angle)
    push = (force + POLE_MOMENT * spin**2 * sine) / TOTAL_MASS
    spin_rate = (GRAVITY * sine - cosine * push) / (
        HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine**2 / TOTAL_MASS)
    )
    acceleration = push - POLE_MOMENT * spin_rate * cosine / TOTAL_MASS
    rates = np.stack([speed, acceleration, spin, spin_rate], axis=1)
    return states + STEP_S * rates


def failed(states: Floats) -> NDArray[np.bool_]:
    return (np.abs(states[:, 0]) > MAX_POSITION) | (np.abs(states[:, 2]) > MAX_ANGLE)


def rollout(policy: Policy, seed: tuple[int, ...], episodes: int) -> Rollout:
    """Play ``episodes`` episodes by drawing actions from the policy."""
    rng = np.random.default_rng(seed)
    states = rng.uniform(-0.05, 0.05, (episodes, 4))
    running = np.arange(episodes)
    seen: list[tuple[NDArray[np.int64], Floats, NDArray[np.int8]]] = []
    for _ in range(MAX_STEPS):
        actions = (rng.random(len(running)) < policy.right(states)).astype(np.int8)
        seen.append((running, states, actions))
        states = advance(states, actions)
        up = ~failed(states)
        running, states = running[up], states[up]
        if not len(running):
            break
    owners = np.concatenate([owner for owner, _, _ in seen])
    by_episode = np.argsort(owners, kind="stable")
    return Rollout(
        states=np.concatenate([step for _, step, _ in seen])[by_episode],
        actions=np.concatenate([step for _, _, step in seen])[by_episode],
        lengths=np.bincount(owners, minlength=episodes),
    )


def evaluate(policy: Policy, seed: tuple[int, ...], episodes: int) -> float:
    """Mean return of the greedy policy."""
    rng = np.random.default_rng(seed)
    states = rng.uniform(-0.05, 0.05, (episodes, 4))
    total = 0
    for _ in range(MAX_STEPS):
        total += len(states)
        states = advance(states, (policy.right(states) > 0.5).astype(np.int8))
        states = states[~failed(states)]
        if not len(states):
            break
    return total / episodes
