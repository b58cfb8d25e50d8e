"""Who hears a reply: Ray's callback thread, or the thread that waits for the job anyway.

A job that is submitted and waited for at once, one after the other, is the warm path that counts.
There the waiting thread takes the reply from Ray itself, which saves a change of threads. So the
reply of the job submitted last is left unheard for a moment: until its submitter waits for it, or
anything else happens that its end could matter to, or ``SWEEP_S`` has passed.
"""

from __future__ import annotations

from firepool_ray.client.clock import Clock
from firepool_ray.client.job import Job
from firepool_ray.client.transport import OnReply, Transport

#: A reply that nobody waits for is listened to after this at the latest.
SWEEP_S = 0.05
#: So long does a thread wait inside Ray, where signals are noticed late; then on a bare lock.
TAKE_S = 0.02


class Ears:
    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._sweeping = False
        self.unheard: dict[str, tuple[object, OnReply]] = {}  #: by job; rarely more than one

    def add(self, job: Job, header: object, on_reply: OnReply) -> None:
        """A call has left; somebody will hear its reply. Raises ``CallFailed``."""
        if not job._fresh or self._transport.is_remote:
            self._transport.listen(header, on_reply)
            return
        self.unheard[job.id] = (header, on_reply)
        if not self._sweeping:
            self._sweeping = True
            self._clock.call_later(SWEEP_S, self._sweep)

    def listen(self, job: str) -> None:
        entry = self.unheard.get(job)
        if entry is not None:
            # in this order: broken off in between, it is heard twice, and one reply counts
            self._transport.listen(*entry)
            self.unheard.pop(job, None)

    def listen_all(self) -> None:
        for job in list(self.unheard):
            self.listen(job)

    def take(self, job: str, timeout_s: float | None) -> bool:
        """Wait a moment for the reply of a job in this thread; True if it came and was handled.

        Whatever happens, the reply is listened to afterwards.
        """
        entry = self.unheard.get(job)
        if entry is None:
            return False
        wait_s = TAKE_S if timeout_s is None else min(timeout_s, TAKE_S)
        came = False
        try:
            came = self._transport.take(entry[0], wait_s, entry[1])
        finally:
            if came:
                self.unheard.pop(job, None)
            else:
                self.listen(job)
        return came

    def _sweep(self) -> None:
        self._sweeping = False
        self.listen_all()
