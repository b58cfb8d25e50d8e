"""Until when is an idle bound worker held? Called by the machine when a worker becomes idle.

One policy so far: a fixed time to live per profile. A learning policy takes this function's place.
"""

from __future__ import annotations

from firepool_ray.core.model import Caller, ProfileSpec


def hold_until(profile: ProfileSpec, caller: Caller, idle_since: float, *, closing: bool) -> float:
    """Time at which an idle worker of ``caller`` is retired; at once if that one is closing."""
    return idle_since if closing else idle_since + profile.keep_alive_s
