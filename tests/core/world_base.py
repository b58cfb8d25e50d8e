"""Words, lanes, mailboxes, clients and the passing of time: what ``world`` is made of."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from firepool_ray.core import events as ev
from firepool_ray.core.machine import Machine
from firepool_ray.core.model import (
    Caller,
    Fence,
    Grant,
    LeaseId,
    PoolSpec,
    ReuseKey,
)
from firepool_ray.core.pump import Pump

POLL_S = 10.0
LINGER_S = 0.02
TETHER_S = 2.0


@dataclass
class Word:
    """A worker's process and its lease word."""

    worker: str
    lane: str
    slot: int
    state: str = "starting"  #: starting standby idle busy draining revoked
    alive: bool = True
    fence: Fence = Fence(0, 0)
    key: ReuseKey | None = None
    client: str = ""
    since: float = 0.0
    job: str = ""
    stopping: bool = False
    started: set[str] = field(default_factory=set)
    reported_idle: bool = False
    swept: bool = False
    may_be_killed: bool = False  #: its promotion failed, so the controller knows no lease to revoke
    inbox_at: float = 0.0  #: orders to one worker arrive in order
    news_at: float = 0.0  #: and so do its warden's news of it


@dataclass
class Ground:
    """A lane as the cluster sees it."""

    lane: str
    profile: str
    node: str
    epoch: int
    ready: bool = False


class Mailbox:
    """As ``runtime.mailbox``: grants until acknowledged, the rest once."""

    def __init__(self) -> None:
        self.seq = -1
        self.grants: dict[int, Grant] = {}
        self.revoked: list[LeaseId] = []
        self.rejections: list[Any] = []
        self.parked: int | None = None


class Client:
    def __init__(self, name: str, caller: Caller, parent: LeaseId | None, parent_job: str) -> None:
        self.name = name
        self.caller = caller
        self.pump = Pump()
        self.parent = parent
        self.parent_job = parent_job
        self.alive = True
        self.wake_at = float("inf")
        self.acked_seq = 0


class Clockwork:
    """State of the world, its time, and the ways of news. See ``world``."""

    def __init__(self, spec: PoolSpec, seed: int, nodes: int = 2) -> None:
        self.spec = spec
        self.random = random.Random(seed)
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.epoch = 0
        self.nodes = [f"n{i}" for i in range(nodes)]
        self.node_number = nodes
        self.grounds: dict[str, Ground] = {}
        self.words: dict[str, Word] = {}
        self.clients: dict[str, Client] = {}
        self.boxes: dict[str, Mailbox] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.ended: dict[str, str] = {}
        self.served: list[str] = []  #: jobs in the order in which they started
        self.sources: list[str] = []
        self.faults = 0.0  #: chance that a start, growth, promotion or sweep fails
        self.loss = 0.0  #: chance that a reply is lost
        self.slow = 0.05  #: chance that a message takes long
        self.wake_at = float("inf")
        self.machine: Machine
        self.excess: dict[str, float] = {}
        self.events = 0
        self.trace: list[str] = []

    # ---------------------------------------------------------------- time

    def later(self, delay: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.heap, (self.now + delay, self.count, what))

    def delay(self) -> float:
        if self.random.random() < self.slow:
            return self.random.uniform(0.05, 2.0)
        return self.random.uniform(0.0002, 0.01)

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> None:
        end = self.now + seconds
        while self.heap and self.heap[0][0] <= end:
            self.now, _, what = heapq.heappop(self.heap)
            what()
            if until is not None and until():
                return
        self.now = end

    # ---------------------------------------------------------------- news
    def tell(self, event_of: Callable[[float], ev.Event], delay: float | None = None) -> None:
        """News for the controller of this epoch; a successor never hears of it."""
        epoch = self.epoch

        def arrive() -> None:
            if self.epoch == epoch:
                self.feed(event_of(self.now))

        self.later(self.delay() if delay is None else delay, arrive)

    def news(self, word: Word, event_of: Callable[[float], ev.Event]) -> None:
        word.news_at = max(self.now + self.delay(), word.news_at + 1e-6)
        self.tell(event_of, word.news_at - self.now)

    def feed(self, event: ev.Event) -> None:
        raise NotImplementedError

    def exit_worker(self, name: str) -> None:
        raise NotImplementedError

    def watch_idle(self, word: Word) -> None:
        word.reported_idle = False
        since, fence = word.since, word.fence

        def look() -> None:
            if word.alive and word.state == "idle" and (word.since, word.fence) == (since, fence):
                word.reported_idle = True
                self.news(word, lambda at: ev.WorkerIdle(at, word.worker, fence, since))

        self.later(LINGER_S + self.random.uniform(0, 0.05), look)
