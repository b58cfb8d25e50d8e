"""What a warden tells its controller: changes of lease words, worth a message.

Used by the warden only. Pure: readings and times come in, news go out. Short jobs flip a word
many times a second; a controller wants to know who is idle for longer than the linger, whether
that has changed, and which leases and processes have ended.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from firepool_ray.core.model import Fence
from firepool_ray.runtime.protocol import Word, WordNews

Kind = Literal["idle", "busy", "ended", "exited", "orphaned"]

#: An idle worker that worked in between is reported anew at most this often.
REFRESH_S = 1.0
#: News that are kept for a controller that does not listen just now.
LOG_ITEMS = 10_000


@dataclass(slots=True)
class Sight:
    """What the controller was last told of one worker."""

    fence: Fence = Fence(0, 0)
    told: Literal["", "idle", "busy", "ended"] = ""
    since: float = 0.0  #: ``Word.since`` of what was told
    told_at: float = 0.0

    def tell(self, word: Word, told: Literal["", "idle", "busy", "ended"], now: float) -> None:
        self.fence, self.told, self.since, self.told_at = word.fence, told, word.since, now


def observe(sight: Sight, word: Word, replying: bool, now: float, linger_s: float) -> list[Kind]:
    """Compare a reading with what was told, and tell the difference."""
    if word.fence != sight.fence:
        sight.tell(word, "", now)
    if word.state == "idle" and not replying:
        return _observe_idle(sight, word, now, linger_s)
    if word.state == "revoked" and not replying:
        if sight.told == "ended":
            return []
        sight.tell(word, "ended", now)
        return ["ended"]
    if word.state != "standby" and sight.told == "idle":
        sight.tell(word, "busy", now)
        return ["busy"]
    return []


def _observe_idle(sight: Sight, word: Word, now: float, linger_s: float) -> list[Kind]:
    if now - word.since < linger_s:
        return []
    if sight.told != "idle":
        sight.tell(word, "idle", now)
        return ["idle"]
    if word.since != sight.since and now - sight.told_at >= REFRESH_S:
        sight.tell(word, "idle", now)
        return ["busy", "idle"]
    return []


class _Item(NamedTuple):
    number: int
    kind: Kind
    worker: str
    fence: Fence
    since: float
    detail: str


class NewsLog:
    """Numbered news of one warden process. Numbers grow from one process to the next."""

    def __init__(self, first: int) -> None:
        self._items: deque[_Item] = deque(maxlen=LOG_ITEMS)
        self.last = first

    def add(self, kind: Kind, worker: str, fence: Fence, since: float, detail: str = "") -> None:
        self.last += 1
        self._items.append(_Item(self.last, kind, worker, fence, since, detail))

    def clear(self) -> None:
        """The whole state was handed over: what was said before is included in it."""
        self._items.clear()

    def after(self, cursor: int, now: float) -> list[WordNews]:
        return [
            WordNews(item.kind, item.worker, item.fence, max(0.0, now - item.since), item.detail)
            for item in self._items
            if item.number > cursor
        ]
