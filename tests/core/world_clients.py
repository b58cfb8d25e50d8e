"""The clients' half of ``world``: real pumps, modelled mailboxes, jobs and their workers."""

from __future__ import annotations

from collections.abc import Callable

from firepool_ray.core import actions as do
from firepool_ray.core import events as ev
from firepool_ray.core import pump_events as pe
from firepool_ray.core.model import (
    Caller,
    JobClass,
    LeaseId,
    ReuseKey,
)
from tests.core.world_base import POLL_S, TETHER_S, Client, Clockwork, Mailbox, Word


class ClientSide(Clockwork):
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
        if not client.alive and self.random.random() < 0.5:
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
        if not client.alive and self.random.random() < 0.5:
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
        self.to_client(client, lambda at: pe.CancelAnswered(at, action.job, action.lease, reached))

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
