"""Probes of one container: startup, readiness, liveness, each with its thresholds.

Delays and periods are as in the manifest, but a readiness probe begins after 2 s at the latest and
is asked every second until it succeeds: tests wait for little else.
"""

from __future__ import annotations

import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from tests.kube.bed.containers import Container

_TICK_S = 0.2
_EAGER_DELAY_S = 2.0
_EAGER_PERIOD_S = 1.0


def start_probes(
    container: Container, address: str, changed: Callable[[], None], stop: threading.Event
) -> None:
    """Probes this run of the container from a thread of its own, until the run or pod ends."""
    if any(f"{kind}Probe" in container.spec for kind in ("startup", "readiness", "liveness")):
        run = _Run(container, address, changed, stop)
        threading.Thread(target=run.loop, name=f"probes {container.name}", daemon=True).start()


class _Probe:
    """One probe and what it has seen."""

    def __init__(self, spec: Mapping[str, Any], began: float, *, eager: bool = False) -> None:
        self._spec = spec
        self._eager = eager
        delay = spec.get("initialDelaySeconds", 0)
        self._due = began + (min(delay, _EAGER_DELAY_S) if eager else delay)
        self._in_a_row = 0  #: successes if positive, failures if negative
        self.verdict: bool | None = None  #: none until a threshold is reached

    def look(self, container: Container, address: str) -> bool:
        """Asks if it is time to; returns whether the verdict changed."""
        now = time.monotonic()
        if now < self._due:
            return False
        good = _ask(self._spec, container, address)
        self._in_a_row = max(self._in_a_row, 0) + 1 if good else min(self._in_a_row, 0) - 1
        before = self.verdict
        if self._in_a_row >= self._spec.get("successThreshold", 1):
            self.verdict = True
        elif -self._in_a_row >= self._spec.get("failureThreshold", 3):
            self.verdict = False
        eager = self._eager and not self.verdict
        self._due = now + (_EAGER_PERIOD_S if eager else self._spec.get("periodSeconds", 10))
        return self.verdict != before


class _Run:
    def __init__(
        self,
        container: Container,
        address: str,
        changed: Callable[[], None],
        stop: threading.Event,
    ) -> None:
        self._container = container
        self._address = address
        self._changed = changed
        self._stop = stop
        self._number = container.runs

    def loop(self) -> None:
        spec = self._container.spec
        if "startupProbe" in spec:
            startup = self._probe("startup")
            while self._goes_on() and not startup.verdict:
                startup.look(self._container, self._address)
                if startup.verdict is False:
                    return self._container.kill()
            if not self._goes_on():
                return None
            self._container.probed_started = True
            self._changed()
        readiness, liveness = self._probe("readiness", eager=True), self._probe("liveness")
        while self._goes_on():
            if readiness and readiness.look(self._container, self._address):
                self._container.probed_ready = bool(readiness.verdict)
                self._changed()
            if liveness and liveness.look(self._container, self._address) and not liveness.verdict:
                return self._container.kill()
        return None

    def _probe(self, kind: str, *, eager: bool = False) -> Any:
        spec = self._container.spec.get(f"{kind}Probe")
        return _Probe(spec, time.monotonic(), eager=eager) if spec else None

    def _goes_on(self) -> bool:
        if self._stop.wait(_TICK_S):
            return False
        return self._container.running and self._container.runs == self._number


def _ask(spec: Mapping[str, Any], container: Container, address: str) -> bool:
    timeout_s = spec.get("timeoutSeconds", 1)
    try:
        if "exec" in spec:
            return container.exec(spec["exec"]["command"], timeout_s + 0.5).returncode == 0
        if "httpGet" in spec:
            get = spec["httpGet"]
            url = f"http://{address}:{_port(get, container)}{get.get('path', '/')}"
            with urllib.request.urlopen(url, timeout=timeout_s):
                return True
        if "tcpSocket" in spec:
            target = f"/dev/tcp/127.0.0.1/{_port(spec['tcpSocket'], container)}"
            done = container.exec(["bash", "-c", f"exec 3<>{target}"], timeout_s + 0.5)
            return done.returncode == 0
    except (subprocess.TimeoutExpired, ProcessLookupError, urllib.error.URLError, OSError):
        return False
    return True


def _port(target: Mapping[str, Any], container: Container) -> int:
    """Of a probe, which may say it by the name of a container's port."""
    port = target["port"]
    if isinstance(port, int):
        return port
    named: dict[str, int] = {
        p.get("name"): p["containerPort"] for p in container.spec.get("ports", ())
    }
    return named[port]
