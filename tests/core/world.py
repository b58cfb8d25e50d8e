"""A small world around the controller's machine and the clients' pumps, without Ray.

Lease words, wardens, workers, nodes and mailboxes are simple models that follow the protocol of the
architecture; every message takes a random time, so that orders vary, and some are lost. ``run``
lets time pass; everything else is a fault or a wish that a test makes happen. After every event the
machine's invariants are checked, and those of the world:

* never two active workers on one device; nothing is killed before it is revoked;
* a job starts at most once and ends exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firepool_ray.core import actions as do
from firepool_ray.core import events as ev
from firepool_ray.core.machine import Machine
from firepool_ray.core.model import (
    PoolSpec,
)
from tests.core.invariants import check
from tests.core.world_base import Ground, Mailbox, Word
from tests.core.world_clients import ClientSide


class World(ClientSide):
    def __init__(self, spec: PoolSpec, seed: int, nodes: int = 2) -> None:
        super().__init__(spec, seed, nodes)
        self.boot()

    # ---------------------------------------------------------------- the controller

    def feed(self, event: ev.Event) -> None:
        self.events += 1
        self.trace.append(f"{event}")
        actions = self.machine.handle(event)
        check(self.machine.pool, self.now, self.excess)
        for action in actions:
            self.trace.append(f"    -> {action}")
            self.carry_out(action)

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

        # Clocks differ: now and then it rings a little too early.
        early_s = 0.003 if self.random.random() < 0.1 else 0.0
        self.later(max(0.0, when - self.now - early_s), ring)

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

    # ---------------------------------------------------------------- faults
    def exit_worker(self, name: str) -> None:
        """Fault: the process ends by itself."""
        word = self.words.get(name)
        if word is None or not word.alive or word.state == "starting":
            return
        self.kill(word)
        self.news(word, lambda at: ev.WorkerExited(at, name, "segmentation fault"))

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
