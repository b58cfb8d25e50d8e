"""A small world around the controller's machine and the clients' pumps, without Ray.

Lease words, wardens, workers, nodes and mailboxes are simple models that follow the protocol of the
architecture; every message takes a random time, so that orders vary, and some are lost. ``run``
lets time pass; everything else is a fault or a wish that a test makes happen. After every event the
machine's invariants are checked, and those of the world:

* never two active workers on one device; nothing is killed before it is revoked;
* a job starts at most once and ends exactly once.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from firepool_ray.core import actions as do
from firepool_ray.core import events as ev
from firepool_ray.core import pump_events as pe
from firepool_ray.core.machine import Machine
from firepool_ray.core.model import (
    Caller,
    Fence,
    Grant,
    JobClass,
    LeaseId,
    PoolSpec,
    ReuseKey,
)
from firepool_ray.core.pump import Pump
from tests.core.invariants import check

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


class World:
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
        self.boot()

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

    # ---------------------------------------------------------------- the controller

    def feed(self, event: ev.Event) -> None:
        self.events += 1
        self.trace.append(f"{event}")
        actions = self.machine.handle(event)
        check(self.machine.pool, self.now, self.excess)
        for action in actions:
            self.trace.append(f"    -> {action}")
            self.carry_out(action)

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

    def boot(self) -> None:
        """A new controller takes over: wardens refuse the older one from here on."""
        self.epoch += 1
        self.machine = Machine(self.spec, self.epoch)
        self.excess = {}
        self.wake_at = float("inf")
        for client in self.clients.values():
            box = self.boxes.get(client.name)
            if box is not None and box.parked is not None:
                self.fail_sync(client, box.parked)
        self.boxes.clear()
        if self.epoch == 1:
            self.adopt()
            return
        epoch = self.epoch
        self.later(
            self.random.uniform(0.0, 1.0), lambda: self.adopt() if self.epoch == epoch else None
        )

    def adopt(self) -> None:
        """What stands is told to the new controller; clients may have spoken to it before."""
        for ground in list(self.grounds.values()):
            if not ground.ready:  # still pending: removed
                del self.grounds[ground.lane]
        anything = {f"lanes of {p.name}": 1e9 for p in self.spec.profiles}
        self.excess = {**anything, "gpus": 1e9, **{q.name: 1e9 for q in self.spec.queues}}
        units: dict[str, float] = {}
        counts: dict[str, float] = {}
        for ground in self.grounds.values():
            name = f"lanes of {ground.profile}"
            counts[name] = counts.get(name, 0) + 1
            self.feed(ev.LaneAdopted(self.now, ground.lane, ground.profile, ground.node))
        for word in list(self.words.values()):
            if not word.alive or word.state == "starting":
                self.kill(word)
                self.words.pop(word.worker)
                continue
            if word.key is not None:
                unit = next(p for p in self.spec.profiles if p.name == word.key.profile).unit
                queue = word.key.caller.queue
                units[queue] = units.get(queue, 0.0) + unit
            self.feed(
                ev.WorkerAdopted(
                    self.now,
                    word.worker,
                    word.lane,
                    word.slot,
                    word.state,  # type: ignore[arg-type]
                    word.key,
                    word.fence if word.key is not None else None,
                    word.client,
                    self.now - word.since,
                )
            )
            word.reported_idle = word.state == "idle"
        self.excess = {**units, **counts}
        self.excess["gpus"] = self.machine.pool.reserved_gpus
        self.feed(ev.Reconciled(self.now))
        for name, client in self.clients.items():
            if not client.alive:
                self.tell(lambda at, name=name: ev.ClientLost(at, name, "gone"))  # type: ignore[misc]

    def set_wake(self, when: float) -> None:
        self.wake_at = when
        epoch = self.epoch

        def ring() -> None:
            if self.epoch == epoch and self.wake_at == when:
                self.wake_at = float("inf")
                self.feed(ev.Woke(self.now))

        self.later(max(0.0, when - self.now), ring)

    # ---------------------------------------------------------------- effects

    def carry_out(self, action: do.Action) -> None:
        if isinstance(action, do.WakeAt):
            self.set_wake(action.when)
        elif isinstance(action, do.SendGrant):
            self.grant(action)
        elif isinstance(action, do.SendRevoked):
            box = self.boxes.setdefault(action.client, Mailbox())
            box.grants = {n: g for n, g in box.grants.items() if g.lease != action.lease}
            box.revoked.append(action.lease)
            self.answer(action.client)
        elif isinstance(action, do.SendRejection):
            self.boxes.setdefault(action.client, Mailbox()).rejections.append(action.rejection)
            self.answer(action.client)
        elif isinstance(action, do.GrowLane):
            self.grow(action)
        elif isinstance(action, do.RemoveLane):
            self.after_delay(lambda: self.remove_lane(action.lane))
        else:
            self.order(action)

    def after_delay(self, what: Callable[[], None]) -> None:
        """An effect of this controller; its successor's wardens refuse it."""
        epoch = self.epoch

        def arrive() -> None:
            if self.epoch == epoch:
                what()

        self.later(self.delay(), arrive)

    def grow(self, action: do.GrowLane) -> None:
        assert action.lane not in self.grounds
        node = self.random.choice(self.nodes)
        ground = Ground(action.lane, action.profile, node, self.epoch)
        self.grounds[action.lane] = ground

        def placed() -> None:
            if action.lane not in self.grounds:
                return
            if self.random.random() < self.faults or ground.node not in self.nodes:
                del self.grounds[action.lane]
                self.tell(lambda at: ev.LaneFailed(at, action.lane, "no room"))
                return
            ground.ready = True
            self.tell(lambda at: ev.LaneReady(at, action.lane, ground.node))

        self.after_delay(placed)

    def remove_lane(self, lane: str) -> None:
        assert not any(w.lane == lane and w.alive for w in self.words.values())
        self.grounds.pop(lane, None)
        self.tell(lambda at: ev.LaneRemoved(at, lane))

    def order(self, action: Any) -> None:
        """Orders to one worker's warden arrive in order."""
        epoch = self.epoch
        word = self.words.get(action.worker)
        if isinstance(action, do.StartWorker):
            assert action.worker not in self.words
            word = self.words[action.worker] = Word(action.worker, action.lane, action.slot)
            word.alive = action.lane in self.grounds  # else its node is gone, as will be told
        if word is None:
            if isinstance(action, do.RetireWorker):
                self.tell(lambda at: ev.WorkerRetired(at, action.worker))
            return
        known = word
        known.inbox_at = max(self.now + self.delay(), known.inbox_at + 1e-6)

        def arrive() -> None:
            if self.epoch == epoch and known.lane in self.grounds:
                getattr(self, f"do_{type(action).__name__}")(known, action)

        self.later(known.inbox_at - self.now, arrive)

    def do_StartWorker(self, word: Word, action: do.StartWorker) -> None:
        def started() -> None:
            if not word.alive:
                return
            if self.random.random() < self.faults:
                self.tell(lambda at: ev.WorkerStartFailed(at, word.worker, "it does not start"))
            else:
                word.state, word.since = "standby", self.now
                self.tell(lambda at: ev.WorkerStarted(at, word.worker))

        epoch = self.epoch
        self.later(self.random.uniform(0.1, 0.5), lambda: self.epoch == epoch and started())  # type: ignore[arg-type,func-returns-value]

    def active_on(self, lane: str) -> list[Word]:
        return [
            w
            for w in self.words.values()
            if w.lane == lane and w.alive and w.state not in ("starting", "standby")
        ]

    def do_PromoteWorker(self, word: Word, action: do.PromoteWorker) -> None:
        if not word.alive:
            return  # its exit is on the way
        assert word.state == "standby", f"{word} promoted twice"
        given_up = False
        if self.random.random() < self.faults:
            word.may_be_killed = given_up = True
            failed = ev.PromotionFailed
            if self.random.random() < 0.5:
                self.tell(lambda at: failed(at, word.worker, action.fence, "CUDA is in use"))
                return
            # given up too early: it takes effect all the same
            self.tell(lambda at: failed(at, word.worker, action.fence, "no answer in time"))
        assert not self.active_on(word.lane), f"I1: {self.active_on(word.lane)} beside {word}"
        word.state, word.fence, word.key = "idle", action.fence, action.key
        word.client, word.since = action.client, self.now
        if not given_up:
            self.tell(lambda at: ev.WorkerPromoted(at, word.worker, action.fence))
        self.watch_idle(word)

    def do_RegrantLease(self, word: Word, action: do.RegrantLease) -> None:
        if not word.alive:
            return
        assert word.state == "revoked" and word.fence == action.revoked
        word.state, word.fence, word.client = "idle", action.fence, action.client
        word.since, word.reported_idle = self.now, False
        self.tell(lambda at: ev.LeaseRegranted(at, word.worker, action.fence))
        self.watch_idle(word)

    def do_RevokeLease(self, word: Word, action: do.RevokeLease) -> None:
        answer = self.revoke(word, action)
        self.tell(lambda at: ev.RevokeAnswered(at, word.worker, action.fence, answer))

    def revoke(self, word: Word, action: do.RevokeLease) -> ev.RevokeAnswer:
        if not word.alive:
            return "dead"
        if word.fence != action.fence or word.state in ("starting", "standby"):
            return "stale"
        if word.state == "revoked":
            return "gone"
        if word.state == "idle":
            if action.mode == "if_idle" and self.now - word.since < action.min_idle_s:
                self.watch_idle(word)
                return "busy"
            word.since, word.reported_idle = self.now, False
            if action.successor is not None:
                word.fence, word.client = action.successor, action.client
                self.watch_idle(word)
                return "moved"
            word.state = "revoked"
            return "gone"
        if action.mode == "if_idle":
            return "draining" if word.state == "draining" else "busy"
        if action.mode == "stop" and not word.stopping:
            word.stopping = True
            job = word.job
            self.later(self.delay(), lambda: self.end_job(word, job, "stopped"))
        word.state = "draining"
        return "draining"

    def do_RetireWorker(self, word: Word, action: do.RetireWorker) -> None:
        if word.alive and word.state in ("idle", "busy", "draining"):
            assert word.may_be_killed, f"killed before it was revoked: {word} {action}"
        if self.random.random() < self.faults:
            self.tell(lambda at: ev.RetireFailed(at, word.worker, "a process hangs"), 10.0)
            return
        self.kill(word)
        self.words.pop(word.worker, None)
        self.tell(lambda at: ev.WorkerRetired(at, word.worker))

    def kill(self, word: Word) -> None:
        if not word.alive:
            return
        word.alive = False
        if word.job:
            self.break_call(word.job)
        for client in list(self.clients.values()):
            if client.parent is not None and client.parent.worker == word.worker:
                self.client_dies(client.name)

    # ---------------------------------------------------------------- the warden's news

    def watch_idle(self, word: Word) -> None:
        word.reported_idle = False
        since, fence = word.since, word.fence

        def look() -> None:
            if word.alive and word.state == "idle" and (word.since, word.fence) == (since, fence):
                word.reported_idle = True
                self.news(word, lambda at: ev.WorkerIdle(at, word.worker, fence, since))

        self.later(LINGER_S + self.random.uniform(0, 0.05), look)

    def exit_worker(self, name: str) -> None:
        """Fault: the process ends by itself."""
        word = self.words.get(name)
        if word is None or not word.alive or word.state == "starting":
            return
        self.kill(word)
        self.news(word, lambda at: ev.WorkerExited(at, name, "segmentation fault"))

    # ---------------------------------------------------------------- nodes

    def lose_node(self, node: str) -> None:
        if node not in self.nodes:
            return
        self.nodes.remove(node)
        self.nodes.append(f"n{self.node_number}")
        self.node_number += 1
        for word in list(self.words.values()):
            if self.grounds[word.lane].node == node if word.lane in self.grounds else False:
                self.kill(word)
                self.words.pop(word.worker)
        for ground in [g for g in self.grounds.values() if g.node == node and g.ready]:
            del self.grounds[ground.lane]
        self.tell(lambda at: ev.NodeLost(at, node, "its warden does not answer"), 0.0)
        # Lanes whose readiness was still on its way are lost with a second word.
        self.tell(lambda at: ev.NodeLost(at, node, "its warden does not answer"), 3.0)

    def drain_node(self, node: str) -> None:
        self.tell(lambda at: ev.NodeDraining(at, node))

    # ---------------------------------------------------------------- clients

    def join(
        self, name: str, caller: Caller, parent: LeaseId | None = None, parent_job: str = ""
    ) -> Client:
        client = self.clients[name] = Client(name, caller, parent, parent_job)
        if parent is not None:
            self.pump(client, pe.ParentChanged(self.now, parent, True))
        return client

    def submit(
        self,
        name: str,
        profile: str = "p",
        count: int = 1,
        priority: int = 0,
        run_s: float | None = None,
        deps: str = "",
        children: tuple[str, ...] = (),
    ) -> list[str]:
        client = self.clients[name]
        made = []
        for _ in range(count):
            job = f"j{len(self.jobs)}"
            self.jobs[job] = {
                "client": name,
                "run_s": self.random.choice((0.001, 0.02, 0.3, 1.0)) if run_s is None else run_s,
                "children": children,
                "starts": 0,
                "lease": None,
                "at": self.now,
            }
            made.append(job)
            job_class = JobClass(ReuseKey(profile, client.caller, deps), priority)
            self.pump(client, pe.JobSubmitted(self.now, job, job_class))
        return made

    def cancel(self, job: str) -> None:
        client = self.clients.get(self.jobs[job]["client"])
        if client is not None and client.alive:
            self.pump(client, pe.CancelRequested(self.now, job))

    def client_dies(self, name: str) -> None:
        client = self.clients.get(name)
        if client is None or not client.alive:
            return
        client.alive = False
        for job, facts in self.jobs.items():
            if facts["client"] == name and job not in self.ended:
                self.ended[job] = "client died"
        self.tell(lambda at: ev.ClientLost(at, name, "gone"), TETHER_S)

    def pump(self, client: Client, event: pe.PumpEvent) -> None:
        if not client.alive:
            return
        self.trace.append(f"  {client.name}: {event}")
        for action in client.pump.handle(event):
            self.trace.append(f"      {client.name} -> {action}")
            self.act(client, action)

    def to_client(self, client: Client, event_of: Callable[[float], pe.PumpEvent]) -> None:
        self.later(self.delay(), lambda: self.pump(client, event_of(self.now)))

    def act(self, client: Client, action: pe.PumpAction) -> None:
        if isinstance(action, pe.WakePump):
            client.wake_at = action.when

            def ring() -> None:
                if client.wake_at == action.when:
                    self.pump(client, pe.PumpWoke(self.now))

            self.later(max(0.0, action.when - self.now), ring)
        elif isinstance(action, pe.SendSync):
            self.later(self.delay(), lambda: self.sync(client, action))
        elif isinstance(action, pe.DispatchJob):
            self.sources.append(action.source)
            self.jobs[action.job]["lease"] = action.lease
            self.jobs[action.job]["call"] = True
            self.later(self.delay(), lambda: self.start_job(client, action))
        elif isinstance(action, pe.EndJob):
            assert action.job not in self.ended, f"{action} ended twice"
            self.ended[action.job] = action.cause
            self.child_ended(client)
        elif isinstance(action, pe.StopJob):
            self.later(self.delay(), lambda: self.stop_job(client, action))
        elif isinstance(action, pe.SettleJob):
            self.later(self.delay(), lambda: self.settle(client, action))
        elif isinstance(action, pe.ReplayJob):
            self.later(self.delay(), lambda: self.replay(client, action))
        elif isinstance(action, pe.AbandonLease):
            self.later(self.delay(), lambda: self.exit_worker(action.lease.worker))

    def child_ended(self, client: Client) -> None:
        parent = client.parent_job
        if client.parent is None or any(
            job not in self.ended for job, f in self.jobs.items() if f["client"] == client.name
        ):
            return
        word = self.words.get(client.parent.worker)
        self.pump(client, pe.ParentChanged(self.now, client.parent, False))
        if word is not None:
            self.later(0.001, lambda: self.end_job(word, parent, "ended"))

    # ---------------------------------------------------------------- syncs

    def fail_sync(self, client: Client, seq: int) -> None:
        self.to_client(client, lambda at: pe.SyncFailed(at, seq, "the controller is gone", 1e9))

    def sync(self, client: Client, action: pe.SendSync) -> None:
        box = self.boxes.get(client.name)
        if not client.alive:
            if self.random.random() < 0.5:
                return  # what it sent last may still arrive, or not
        if box is None:
            box = self.boxes[client.name] = Mailbox()
        if action.seq <= box.seq:
            self.to_client(client, lambda at: pe.Synced(at, action.seq, self.epoch))
            return
        if box.parked is not None:
            older = box.parked
            self.to_client(client, lambda at: pe.Synced(at, older, self.epoch))
        box.seq, box.parked = action.seq, action.seq
        if action.acked[0] == self.epoch:
            box.grants = {n: g for n, g in box.grants.items() if n > action.acked[1]}
        self.feed(
            ev.ClientSynced(
                self.now,
                client.name,
                action.seq,
                action.held,
                action.acked,
                action.demands,
                action.parent,
                action.blocked,
            )
        )
        if box.grants or box.revoked or box.rejections:
            self.answer(client.name)
        epoch, seq = self.epoch, action.seq

        def enough() -> None:
            if self.epoch == epoch and box is not None and box.parked == seq:
                self.reply(client, box)

        self.later(POLL_S, enough)

    def grant(self, action: do.SendGrant) -> None:
        self.boxes.setdefault(action.client, Mailbox()).grants[action.grant.number] = action.grant
        self.answer(action.client)

    def answer(self, name: str) -> None:
        box, client = self.boxes[name], self.clients.get(name)
        if client is not None and box.parked is not None:
            self.reply(client, box)

    def reply(self, client: Client, box: Mailbox) -> None:
        seq, box.parked = box.parked, None
        assert seq is not None
        news = (self.epoch, tuple(box.grants.values()), tuple(box.revoked), tuple(box.rejections))
        box.revoked, box.rejections = [], []
        if self.random.random() < self.loss:
            self.fail_sync(client, seq)
            return
        self.to_client(client, lambda at: pe.Synced(at, seq, *news))

    # ---------------------------------------------------------------- jobs

    def start_job(self, client: Client, action: pe.DispatchJob) -> None:
        word = self.words.get(action.lease.worker)
        if not client.alive:
            if self.random.random() < 0.5:
                return
        if word is None or not word.alive:
            if client.alive:
                self.to_client(client, lambda at: pe.ReplyLost(at, action.job, action.lease))
            return
        if word.state != "idle" or word.fence != action.lease.fence:
            self.to_client(
                client, lambda at: pe.JobAnswered(at, action.job, action.lease, "refused", "gone")
            )
            return
        assert word.client == client.name, f"I2: {client.name} uses the lease of {word.client}"
        facts = self.jobs[action.job]
        facts["starts"] += 1
        assert facts["starts"] == 1, f"{action.job} started twice"
        word.state, word.job, word.since = "busy", action.job, self.now
        word.started.add(action.job)
        self.served.append(action.job)
        if word.reported_idle:
            word.reported_idle = False
            fence = word.fence
            self.news(word, lambda at: ev.WorkerBusy(at, word.worker, fence))
        if facts["children"]:
            name = f"{client.name}.{action.job}"
            self.join(name, client.caller, action.lease, action.job)
            profile, *rest = facts["children"]
            self.submit(name, profile, children=tuple(rest), run_s=0.01)
        else:
            job = action.job
            self.later(facts["run_s"], lambda: self.end_job(word, job, "ended"))

    def end_job(self, word: Word, job: str, how: str) -> None:
        if not word.alive or word.job != job:
            return
        facts = self.jobs[job]
        child = self.clients.get(f"{facts['client']}.{job}")
        if child is not None and child.alive:
            self.client_dies(child.name)  # it left with its job
        client = self.clients[facts["client"]]
        word.job, word.stopping = "", False
        word.since = self.now
        state = "idle"
        if word.state == "draining":
            word.state = "revoked"
            state = "gone"
            fence = word.fence
            self.news(word, lambda at: ev.LeaseEnded(at, word.worker, fence))
        else:
            word.state = "idle"
            self.watch_idle(word)
        lease = facts["lease"]
        facts["verdict"] = state
        if self.random.random() < self.loss:
            self.to_client(client, lambda at: pe.ReplyLost(at, job, lease))
        else:
            self.to_client(
                client,
                lambda at: pe.JobAnswered(at, job, lease, "ended", state, facts["run_s"]),  # type: ignore[arg-type]
            )

    def break_call(self, job: str) -> None:
        facts = self.jobs[job]
        client = self.clients[facts["client"]]
        self.to_client(client, lambda at: pe.ReplyLost(at, job, facts["lease"]))

    def stop_job(self, client: Client, action: pe.StopJob) -> None:
        word = self.words.get(action.lease.worker)
        reached = word is not None and word.alive and word.job == action.job
        if reached and word is not None:
            self.later(self.delay(), lambda: self.end_job(word, action.job, "cancelled"))
        self.to_client(
            client, lambda at: pe.CancelAnswered(at, action.job, action.lease, reached)
        )

    def settle(self, client: Client, action: pe.SettleJob) -> None:
        word = self.words.get(action.lease.worker)
        started: bool | None = self.jobs[action.job]["starts"] > 0
        if word is None or not word.alive:
            if self.random.random() < 0.2:
                started = None
            running, alive = False, False
        else:
            running, alive = word.job == action.job, True
            if not started and word.state == "idle" and word.fence == action.lease.fence:
                word.state, word.since = "revoked", self.now  # fence off a late delivery
                fence = word.fence
                self.news(word, lambda at: ev.LeaseEnded(at, word.worker, fence))
        self.to_client(
            client,
            lambda at: pe.JobSettled(at, action.job, action.lease, started, running, alive),
        )

    def replay(self, client: Client, action: pe.ReplayJob) -> None:
        word = self.words.get(action.lease.worker)
        if word is None or not word.alive:
            self.to_client(client, lambda at: pe.ReplayFailed(at, action.job, action.lease))
            return
        facts = self.jobs[action.job]
        state = "idle" if word.fence == action.lease.fence and word.state == "idle" else "gone"
        self.to_client(
            client,
            lambda at: pe.JobAnswered(at, action.job, action.lease, "ended", state, facts["run_s"]),  # type: ignore[arg-type]
        )

    # ---------------------------------------------------------------- the end

    def outstanding(self) -> list[str]:
        return [
            job
            for job, facts in self.jobs.items()
            if job not in self.ended and self.clients[facts["client"]].alive
        ]

    def calm(self) -> None:
        """Faults stop; from here on everything that waits must be served."""
        self.faults = self.loss = self.slow = 0.0
        self.feed(ev.IdleCapSet(self.now, float("inf")))
