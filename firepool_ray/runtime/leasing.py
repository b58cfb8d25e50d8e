"""What a lease word may become: pure functions from one reading of it to the next.

Used by the worker (promoted, begun, finished) and by the warden (all others), each inside the
word's lock. No clock, no files, no Ray: times come in as CLOCK_MONOTONIC of the node.
"""

from __future__ import annotations

from typing import Final

from firepool_ray.core.actions import RevokeMode
from firepool_ray.core.events import RevokeAnswer
from firepool_ray.core.model import Fence
from firepool_ray.runtime.protocol import Promotion, Word, WordState

#: Which states may follow which, and by whom; anything else is refused.
EDGES: Final[dict[tuple[WordState, WordState], str]] = {
    ("standby", "idle"): "worker: promoted",
    ("standby", "revoked"): "warden: about to be retired unused",
    ("idle", "busy"): "worker: a job begins",
    ("idle", "revoked"): "warden: revoked",
    ("busy", "idle"): "worker: the job ended",
    ("busy", "draining"): "warden: no further job",
    ("busy", "revoked"): "warden: about to be killed, the job did not stop",
    ("draining", "revoked"): "worker: the last job ended, or warden as from busy",
    ("revoked", "idle"): "warden: granted again under a new fence",
}

RUNNING: Final = frozenset(("busy", "draining"))


def fresh_word(epoch: int, pid: int, pid_start: int, now: float) -> Word:
    """The word of a worker that has just started."""
    return Word("standby", epoch, Fence(0, 0), pid, pid_start, now, 0.0, "", "", "", "", "", "", "")


def promoted(word: Word, promotion: Promotion, now: float) -> Word | None:
    """Standby to idle under a fence; None unless it is a standby."""
    if word.state != "standby":
        return None
    return word._replace(
        state="idle",
        epoch=max(word.epoch, promotion.epoch),
        fence=promotion.fence,
        since=now,
        queue=promotion.caller.queue,
        caller=promotion.caller.name,
        client=promotion.client,
        deps=promotion.deps,
    )


def begun(word: Word, fence: Fence, job: str, now: float, timeout_s: float) -> Word | None:
    """Idle to busy; None if the lease does not hold. A cancel that came first stays in it."""
    if word.state != "idle" or word.fence != fence:
        return None
    cancelled = word.cancel == job
    return word._replace(
        state="busy",
        since=now,
        deadline=now + timeout_s if timeout_s > 0 else 0.0,
        job=job,
        cancel=job if cancelled else "",
        cancel_reason=word.cancel_reason if cancelled else "",
    )


def finished(word: Word, now: float) -> Word:
    """Busy to idle, draining to revoked; a word that was revoked for a kill stays as it is."""
    if word.state not in RUNNING:
        return word
    state: WordState = "idle" if word.state == "busy" else "revoked"
    return word._replace(state=state, since=now, deadline=0.0, cancel="", cancel_reason="")


def regranted(word: Word, fence: Fence, client: str, now: float) -> Word:
    """Revoked or idle, to idle under a new fence for a client of the same caller."""
    return word._replace(
        state="idle",
        epoch=max(word.epoch, fence.epoch),
        fence=fence,
        client=client,
        since=now,
        deadline=0.0,
        cancel="",
        cancel_reason="",
    )


def revoked(word: Word, now: float) -> Word:
    return word._replace(state="revoked", since=now, deadline=0.0)


def draining(word: Word) -> Word:
    """Busy, with no further job to come. ``since`` stays: it is still the same job's."""
    return word._replace(state="draining")


def marked(word: Word, job: str, reason: str) -> Word:
    """The job is to stop. The first reason stays."""
    if word.cancel == job:
        return word
    return word._replace(cancel=job, cancel_reason=reason)


def revocation(
    word: Word,
    replying: bool,
    fence: Fence,
    mode: RevokeMode,
    min_idle_s: float,
    successor: Fence | None,
    client: str,
    now: float,
) -> tuple[RevokeAnswer, Word | None]:
    """The answer to a revocation and the word after it (None: unchanged)."""
    if successor is not None and word.fence == successor and word.client == client:
        return "moved", None
    if word.fence != fence or word.state == "standby":
        return "stale", None
    if word.state == "revoked":
        if successor is not None and successor > fence:
            return "moved", regranted(word, successor, client, now)
        return ("draining" if replying else "gone"), None
    if word.state == "draining":
        return "draining", None
    if word.state == "busy":
        return ("busy", None) if mode == "if_idle" else ("draining", draining(word))
    if mode == "if_idle" and now - word.since < min_idle_s:
        return "busy", None
    if successor is not None:
        return "moved", regranted(word, successor, client, now)
    if not replying:
        return "gone", revoked(word, now)
    # Its last outcome is still on its way out: it must not be killed yet.
    return ("busy", None) if mode == "if_idle" else ("draining", revoked(word, now))
