"""One daemon thread per client that collects the controller's answers to syncs.

Usually one long poll is parked; a newer sync releases it. Replies carry actor handles, which Ray
must not rebuild on its own callback threads: hence a thread of ours.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from firepool_ray.client.transport import CallFailed, Transport
from firepool_ray.errors import PoolUnavailable
from firepool_ray.runtime.protocol import SyncReply, SyncRequest

log = logging.getLogger(__name__)

#: How soon a newer sync is noticed where the older one is stuck (its controller hangs).
_LOOK_S = 0.25


class Poller:
    def __init__(
        self,
        transport: Transport,
        on_reply: Callable[[int, SyncReply], None],
        on_failure: Callable[[int, str], None],
    ) -> None:
        self._transport = transport
        self._on_reply = on_reply
        self._on_failure = on_failure
        self._sent: queue.SimpleQueue[tuple[int, object] | None] = queue.SimpleQueue()
        self._outstanding: dict[object, int] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="firepool-poller", daemon=True)
        self._thread.start()

    def send(self, request: SyncRequest) -> None:
        """In the calling thread, so that demand does not wait for a change of threads."""
        try:
            ref = self._transport.sync(request)
        except CallFailed as error:
            self._on_failure(request.seq, str(error))
            return
        self._sent.put((request.seq, ref))

    def stop(self) -> None:
        self._stopped = True
        self._sent.put(None)

    def _serve(self) -> None:
        while not self._stopped:
            try:
                self._take_sent()
                if self._outstanding and not self._stopped:
                    self._collect()
            except Exception:
                log.exception("the pool's news could not be collected")

    def _take_sent(self) -> None:
        """What was sent meanwhile; sleeps while nothing is outstanding."""
        block = not self._outstanding
        while True:
            try:
                item = self._sent.get(block)
            except queue.Empty:
                return
            if item is None:
                return
            self._outstanding[item[1]] = item[0]
            block = False

    def _collect(self) -> None:
        for ref in self._transport.any_ready(list(self._outstanding), _LOOK_S):
            seq = self._outstanding.pop(ref)
            try:
                reply = self._transport.collect(ref)
            except PoolUnavailable as error:
                self._on_failure(seq, str(error))
            else:
                self._on_reply(seq, reply)
