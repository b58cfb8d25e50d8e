"""The transition tables of workers and lanes: state -> next state -> cause.

Guard every change of state in ``state``; the diagram in the README is drawn from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

WorkerState = Literal[
    "starting",
    "standby",
    "reserved",
    "promoting",
    "bound",
    "revoking",
    "draining",
    "unleased",
    "regranting",
    "leaving",
    "gone",
]
LaneState = Literal["growing", "ready", "quarantined", "retiring", "gone"]

#: worker state -> next state -> cause. Bound to a caller from ``promoting`` on.
WORKER_EDGES: Mapping[str, Mapping[str, str]] = {
    "starting": {
        "standby": "WorkerStarted",
        "leaving": "start failed, lane retired, process gone",
        "gone": "node lost",
    },
    "standby": {
        "reserved": "chosen for a handover; its device is not free yet",
        "promoting": "chosen for waiting demand",
        "leaving": "lane retired, process gone",
        "gone": "node lost",
    },
    "reserved": {
        "promoting": "its device is free now",
        "standby": "the victim turned out busy, or the client left",
        "leaving": "lane retired, process gone",
        "gone": "node lost",
    },
    "promoting": {
        "bound": "WorkerPromoted",
        "leaving": "PromotionFailed, process gone",
        "gone": "node lost",
    },
    "bound": {
        "revoking": "revoke-if-idle asked: handover, keep-alive, cap, move",
        "draining": "its client gave it up or is gone, or it must be shared",
        "leaving": "process gone",
        "gone": "node lost",
    },
    "revoking": {
        "bound": "answer busy: nothing changed; or moved to a sibling",
        "draining": "its client is gone meanwhile",
        "unleased": "answer gone: warm for the caller's other clients",
        "regranting": "answer gone, and a sibling client waits for it",
        "leaving": "answer gone: retired or handed over; process gone",
        "gone": "node lost",
    },
    "draining": {
        "unleased": "its last job ended",
        "regranting": "its last job ended; a sibling client waits for it",
        "bound": "the move asked before the drain went through",
        "leaving": "its last job ended: retired or handed over; process gone",
        "gone": "node lost",
    },
    "unleased": {
        "regranting": "a client of the same caller wants it",
        "leaving": "handed over, keep-alive, cap, no client left; process gone",
        "gone": "node lost",
    },
    "regranting": {
        "bound": "LeaseRegranted",
        "leaving": "process gone",
        "gone": "node lost",
    },
    "leaving": {"gone": "WorkerRetired, node lost"},
    "gone": {},
}

LANE_EDGES: Mapping[str, Mapping[str, str]] = {
    "growing": {
        "ready": "LaneReady",
        "retiring": "LaneFailed: whatever was reserved is given back",
    },
    "ready": {
        "quarantined": "a sweep missed its deadline",
        "retiring": "not needed, node draining or lost",
    },
    "quarantined": {
        "ready": "a later sweep was clean",
        "retiring": "node draining or lost",
    },
    "retiring": {"gone": "LaneRemoved"},
    "gone": {},
}

#: States in which a worker belongs to a caller and its lane's units are charged.
HELD_STATES = frozenset({"promoting", "bound", "revoking", "draining", "unleased", "regranting"})
