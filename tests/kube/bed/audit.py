"""Who asked the API server for what, from its audit log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One answered request; a watch counts when it begins."""

    user: str
    agent: str
    verb: str  #: get, list, watch, create, update, patch, delete
    resource: str  #: plural, with ``/subresource`` if any
    namespace: str
    name: str
    code: int


class Audit:
    """Reads the log from a moment on: ``since = audit.now()`` … ``audit.requests(since)``."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def now(self) -> int:
        """A moment: everything asked later is after it."""
        return self._log.stat().st_size if self._log.exists() else 0

    def requests(self, since: int = 0, *, user: str = "", agent: str = "") -> list[Request]:
        """Answered requests whose user and user agent contain these words."""
        return [
            request
            for request in self._read(since)
            if user in request.user and agent in request.agent
        ]

    def count_by_user(self, since: int = 0) -> Counter[str]:
        return Counter(request.user for request in self._read(since))

    def count_by_agent(self, since: int = 0) -> Counter[str]:
        return Counter(request.agent for request in self._read(since))

    def _read(self, since: int) -> Iterator[Request]:
        seen = set()
        with open(self._log, "rb") as file:
            file.seek(since)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # still being written
                event = json.loads(line)
                if event["auditID"] not in seen:
                    seen.add(event["auditID"])
                    yield _request(event)


def _request(event: dict[str, Any]) -> Request:
    what = event.get("objectRef", {})
    parts = (what.get("resource", event["requestURI"]), what.get("subresource"))
    return Request(
        user=event["user"].get("username", ""),
        agent=event.get("userAgent", ""),
        verb=event["verb"],
        resource="/".join(filter(None, parts)),
        namespace=what.get("namespace", ""),
        name=what.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
    )
