"""When the pump states its situation to the controller, and how long it bears silence.

Part of the pump. One long poll is parked at the controller while leases are held or jobs wait; a
newer sync releases it. Nothing is said on the warm path: a job that finds a free lease changes
neither what is held nor what is wanted.
"""

from __future__ import annotations

from firepool_ray.core.model import Demand, LeaseId
from firepool_ray.core.pump_events import INF, SendSync, SyncFailed
from firepool_ray.core.pump_state import Book, Class

#: Changes of demand closer together than this share one sync.
COALESCE_S = 0.02
#: The situation is stated at least this often while jobs wait: ages and drain times move.
HEARTBEAT_S = 1.0
#: A client that had work listens for so long after: the controller may have workers ready for its
#: next burst and grant them before it asks.
LISTEN_S = 300.0
#: Jobs that wait end when the controller has been silent for this long. It answers a parked poll
#: after 10 s at the latest, and a released one at once.
SILENCE_S = 30.0
BACKOFF_S = 0.05
BACKOFF_MAX_S = 2.0


class Polling:
    def __init__(self, book: Book) -> None:
        self._book = book
        self.epoch = 0
        self.acked = 0  #: number of the last grant seen in this epoch
        self.parent: LeaseId | None = None
        self.blocked = False
        self._seq = 0
        self._parked = 0  #: the sync whose answer is outstanding; 0 for none
        self._last_sync_at = -INF
        self._listen_until = -INF
        self._changed = False  #: something other than demand is to be stated at once
        self._had_news = False
        self._silent_since: float | None = None  #: first unanswered sync with jobs waiting
        self._patience_s = SILENCE_S
        self._backoff_s = 0.0
        self._retry_at = -INF
        self.failure = ""  #: why the last sync failed

    def note_change(self) -> None:
        self._changed = True

    def due_at(self, at: float) -> float:
        """When the next sync is to be sent; inf for not before something changes."""
        book = self._book
        wants_news = bool(book.leases) or book.waiting > 0 or at < self._listen_until
        differs = any(map(_differs, book.touched.values())) if book.touched else False
        if self._retry_at > at:
            return self._retry_at if wants_news or differs or self._changed else INF
        if self._changed:
            return at
        if differs:
            return self._last_sync_at + COALESCE_S
        if wants_news and not self._parked:
            return at if self._had_news else self._last_sync_at + COALESCE_S
        return self._last_sync_at + HEARTBEAT_S if book.waiting else INF

    def silent_until(self) -> float:
        """When jobs that wait end because nobody answers; inf while all is well."""
        if self._silent_since is None or not (self._book.waiting or self._book.blocked):
            return INF
        return self._silent_since + self._patience_s

    def send(self, at: float) -> SendSync:
        self._seq += 1
        self._parked = self._seq
        self._last_sync_at = at
        if self._book.leases or self._book.waiting:
            self._listen_until = at + LISTEN_S
        self._changed = self._had_news = False
        if not self._book.waiting:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = at
            self._patience_s = SILENCE_S
        demands = tuple(self._state_demands(at))
        self._book.touched.clear()
        self._book.prune()
        return SendSync(
            self._seq,
            tuple(self._book.leases),
            (self.epoch, self.acked) if self.epoch else (0, 0),
            demands,
            self.parent,
            self.blocked,
        )

    def _state_demands(self, at: float) -> list[Demand]:
        demands = []
        for key in self._book.keys.values():
            drain_s: float | None = None
            for cls in key.classes.values():
                cls.stated = len(cls.fifo)
                if cls.fifo:
                    drain_s = key.drain_s(at) if drain_s is None else drain_s
                    oldest = next(iter(cls.fifo.values()))
                    age_s = max(0.0, at - oldest.arrived_at)
                    demands.append(Demand(cls.id, cls.stated, age_s, drain_s))
        return demands

    def heard(self, seq: int, at: float, news: bool) -> None:
        """The controller answered, with news or to make room for a newer sync."""
        if seq == self._parked:
            self._parked = 0
        waits_on = self._parked and self._book.waiting
        self._silent_since = self._last_sync_at if waits_on else None
        self._had_news |= news
        self._backoff_s = 0.0
        self._retry_at = -INF
        self.failure = ""

    def failed(self, event: SyncFailed) -> None:
        if event.seq == self._parked:
            self._parked = 0
        if self._silent_since is None and self._book.waiting:
            self._silent_since = event.at
        self._patience_s = event.patience_s
        self._backoff_s = min(BACKOFF_MAX_S, self._backoff_s * 2 or BACKOFF_S)
        self._retry_at = event.at + self._backoff_s
        self.failure = event.reason

    def give_up(self) -> None:
        """The jobs that waited were ended; the next ones get their own patience."""
        self._silent_since = None

    def recover(self) -> None:
        """A call of ``handle`` broke off: what it sent may be lost, so say everything again."""
        self._parked = 0
        self._changed = True


def _differs(cls: Class) -> bool:
    """Whether demand moved enough to be stated: any rise, a fall by half. Heartbeats say the rest.

    A long queue that drains at a thousand jobs a second is stated some ten times in all.
    """
    count = len(cls.fifo)
    return count > cls.stated or count * 2 <= cls.stated and count != cls.stated
