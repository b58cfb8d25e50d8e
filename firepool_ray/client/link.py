"""One leased worker as its client knows it. Kept by ``client.effects``, read by ``transport``."""

from __future__ import annotations

from typing import Any

from firepool_ray.runtime.protocol import WorkerAddress

#: Prepared calls kept per lease, one for each name a task can have.
_CALLS_KEPT = 64


class Link:
    """One leased worker: its handles, and what it is known to have."""

    __slots__ = ("_calls", "address", "codes", "functions")

    def __init__(self, address: WorkerAddress) -> None:
        self.address = address
        self.functions: set[str] = set()  #: keys of functions that were sent
        self.codes: set[str] = set()
        self._calls: dict[str, Any] = {}

    def call(self, name: str) -> Any:
        """``worker.run`` with the name that task lists show."""
        call = self._calls.get(name)
        if call is None:
            if len(self._calls) >= _CALLS_KEPT:
                self._calls.clear()
            call = self.address.handle.run.options(name=name, num_returns=2)
            self._calls[name] = call
        return call
