"""How much idle capacity may be held? Called by the machine after every change of idle capacity.

One rule so far: a static cap on all idle units. Budgets per queue take this function's place.
"""

from __future__ import annotations


def idle_excess(idle_units: float, cap: float) -> float:
    """Units that are idle beyond what may be held; never negative."""
    return max(0.0, idle_units - cap)
