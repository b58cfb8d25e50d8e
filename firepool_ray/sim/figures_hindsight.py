"""How far times to live can go: the best ones, chosen after the fact, from the gaps alone.

Called by ``sim.figures_cost``: where a figure is missed, these are the curve that explains the
limit. Nothing here decides anything. Starts take no time; GPU-seconds as in ``sim.bound``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from firepool_ray.sim.bound import Floats, Pairing


class Ttl(NamedTuple):
    """One time to live for a whole trace."""

    ttl_s: float
    warm_share: float
    idle_gpu_s: float
    cost_gpu_s: float


def _weights(pairing: Pairing) -> tuple[Floats, Floats, float, float]:
    """Gaps sorted with their GPUs; GPUs of compulsory starts, and of jobs that nobody follows."""
    gaps, gpus, follows = pairing.lengths_s(), pairing.gpus(), pairing.follows()
    order = np.argsort(gaps[follows], kind="stable")
    known, sizes = gaps[follows][order], gpus[follows][order]
    compulsory = float(gpus[~follows].sum())
    return known, sizes, compulsory, compulsory  # as many workers end as ever began


def at_ttls(
    pairing: Pairing, ttls_s: Sequence[float], cold_s: float, *, tails: bool = True
) -> list[Ttl]:
    """What each time to live costs. Without ``tails`` callers say when they are done."""
    gaps, sizes, compulsory, last = _weights(pairing)
    total = float(sizes.sum())
    held = np.concatenate([[0.0], np.cumsum(gaps * sizes)])
    served = np.concatenate([[0.0], np.cumsum(sizes)])
    found = []
    for ttl_s in ttls_s:
        index = int(np.searchsorted(gaps, ttl_s, side="right"))
        missed = total - float(served[index])
        idle = float(held[index]) + missed * ttl_s + (last * ttl_s if tails else 0.0)
        cost = idle + (missed + compulsory) * cold_s
        found.append(Ttl(ttl_s, index / max(1, pairing.jobs), idle, cost))
    return found


def best(pairing: Pairing, cold_s: float, *, tails: bool = True) -> Ttl:
    """The cheapest time to live for all callers: none, or one of the gaps."""
    gaps = pairing.lengths_s()
    candidates = np.unique(np.concatenate([[0.0], gaps[gaps <= 4 * cold_s]]))
    return min(
        at_ttls(pairing, candidates.tolist(), cold_s, tails=tails), key=lambda ttl: ttl.cost_gpu_s
    )


def best_per_caller_gpu_s(pairing: Pairing, cold_s: float, *, tails: bool = True) -> float:
    """GPU-seconds where each caller has the time to live that suits it best."""
    gaps, gpus, follows = pairing.lengths_s(), pairing.gpus(), pairing.follows()
    keys = np.array(pairing.key, dtype=np.intp)
    order = np.lexsort((gaps, keys))
    keys, gaps, gpus, follows = keys[order], gaps[order], gpus[order], follows[order]
    cuts = np.flatnonzero(np.diff(keys)) + 1
    cost = 0.0
    for of_one, size, known in zip(
        np.split(gaps, cuts), np.split(gpus, cuts), np.split(follows, cuts), strict=True
    ):
        if not of_one.size:
            continue
        g, first = float(size[0]), int((~known).sum())
        own = of_one[known]
        ttls = np.concatenate([[0.0], own])
        held = np.concatenate([[0.0], np.cumsum(own)])
        missed = own.size - np.arange(own.size + 1)
        each = held + missed * (ttls + cold_s) + first * (cold_s + (ttls if tails else 0.0))
        cost += g * float(each.min())
    return cost
