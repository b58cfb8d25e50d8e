"""REINFORCE with a baseline (Williams 1992) for ``cartpole.Policy``, in numpy: runs in the trainer.

The baseline of a step is the mean return-to-go of all episodes that got that far; advantages are
normalised; Adam (Kingma and Ba 2015) takes the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cartpole import Floats, Policy, Rollout

DISCOUNT = 0.99


class Learner:
    """Holds the policy; ``update`` improves it from rollouts of that very policy."""

    def __init__(self, seed: int, rate: float = 0.02) -> None:
        self.policy = Policy.random(np.random.default_rng(seed))
        self._rate = rate
        self._steps = 0
        self._mean = [np.zeros_like(part) for part in self.policy]
        self._square = [np.zeros_like(part) for part in self.policy]

    def update(self, rollouts: Sequence[Rollout]) -> None:
        states = np.concatenate([rollout.states for rollout in rollouts])
        actions = np.concatenate([rollout.actions for rollout in rollouts])
        lengths = np.concatenate([rollout.lengths for rollout in rollouts])
        self._ascend(_gradient(self.policy, states, actions, _advantages(lengths)))

    def _ascend(self, gradient: Policy) -> None:
        self._steps += 1
        parts = []
        for i, (part, slope) in enumerate(zip(self.policy, gradient, strict=True)):
            self._mean[i] = 0.9 * self._mean[i] + 0.1 * slope
            self._square[i] = 0.999 * self._square[i] + 0.001 * slope**2
            mean = self._mean[i] / (1 - 0.9**self._steps)
            square = self._square[i] / (1 - 0.999**self._steps)
            parts.append(part + self._rate * mean / (np.sqrt(square) + 1e-8))
        self.policy = Policy(*parts)


def _advantages(lengths: Floats) -> Floats:
    # Reward is 1 per step, so the discounted return-to-go depends on the steps left only.
    ages = np.concatenate([np.arange(length) for length in lengths])
    left = np.repeat(lengths, lengths) - ages
    returns = (1 - DISCOUNT**left) / (1 - DISCOUNT)
    baseline = np.bincount(ages, returns) / np.bincount(ages)
    advantages = returns - baseline[ages]
    return advantages / (advantages.std() + 1e-8)


def _gradient(policy: Policy, states: Floats, actions: Floats, advantages: Floats) -> Policy:
    hidden = np.tanh(states @ policy.w1 + policy.b1)
    right = 1.0 / (1.0 + np.exp(-(hidden @ policy.w2 + policy.b2)))
    # d log pi / d logit of a Bernoulli policy, weighted by the advantage.
    slope = (actions - right) * advantages / len(states)
    inner = np.outer(slope, policy.w2) * (1 - hidden**2)
    return Policy(states.T @ inner, inner.sum(axis=0), hidden.T @ slope, np.asarray(slope.sum()))
