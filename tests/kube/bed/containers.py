"""One container: a main process with its own pid and mount namespaces inside a sandbox.

Its main process is process 1, so when that ends the kernel ends all others of the container.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.kube.bed.environment import expand
from tests.kube.bed.sandbox import HOME, OWN, Sandbox

_CHDIR = 'cd "$0" 2>/dev/null || cd /; exec "$@"'


def utc_now() -> str:
    """Now, as the API server writes it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Ended:
    """How a container's last run ended."""

    exit_code: int
    started_at: str
    finished_at: str
    container_id: str
    message: str = ""  #: what it left at ``terminationMessagePath``

    @property
    def reason(self) -> str:
        return "Completed" if self.exit_code == 0 else "Error"


class Container:
    """Runs again and again if asked to; ``ended`` tells about the last run."""

    def __init__(self, spec: Mapping[str, Any], sandbox: Sandbox, log: Path, uid: str) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.log = log
        self.runs = 0
        self.started_at = ""
        self.ended: Ended | None = None
        #: Set by probes; a container without a readiness probe is ready while it runs.
        self.probed_ready = False
        #: A startup probe has succeeded, or there is none.
        self.probed_started = False
        self._sandbox = sandbox
        self._said = log.with_suffix(".said")
        self._uid = uid
        self._env: Mapping[str, str] = {}
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._popen is not None

    @property
    def ready(self) -> bool:
        return self.running and (self.probed_ready or "readinessProbe" not in self.spec)

    @property
    def started(self) -> bool:
        return self.running and (self.probed_started or "startupProbe" not in self.spec)

    @property
    def container_id(self) -> str:
        return f"bed://{self._uid}/{self.name}/{self.runs}"

    def start(self, env: Mapping[str, str], mounts: str) -> None:
        """``mounts`` is a shell script that makes the container's mounts."""
        words = [*self.spec.get("command", ()), *self.spec.get("args", ())]
        argv = [expand(word, env) for word in words] or ["sleep", "infinity"]
        self._said.write_text("")
        self._said.chmod(0o666)
        if (place := self.spec.get("terminationMessagePath", "")).startswith(OWN):
            mounts += f"\ntouch {place} && mount --bind {self._said} {place}"
        spaces = ["--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        shell = ["bash", "-c", f"{mounts}\n{_CHDIR}", self._folder()]
        self._env = env
        self.runs += 1
        self.probed_ready = self.probed_started = False
        self.started_at = utc_now()
        with open(self.log, "ab") as log:
            self._popen = subprocess.Popen(
                self._sandbox.entered(["unshare", *spaces, *shell, *argv]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )

    def poll(self) -> bool:
        """Whether it has ended since the last look."""
        if self._popen is None or (code := self._popen.poll()) is None:
            return False
        exit_code = code if code >= 0 else 128 - code
        message = self._said.read_text(errors="replace")
        self.ended = Ended(exit_code, self.started_at, utc_now(), self.container_id, message)
        self._popen = None
        return True

    def terminate(self) -> None:
        """SIGTERM to the main process."""
        if pid := self.main_pid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to all of its processes."""
        if (popen := self._popen) is not None:
            for pid in filter(None, (self.main_pid(wait_s=0.0), popen.pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            popen.wait()

    def main_pid(self, wait_s: float = 1.0) -> int:
        """Of its process 1, as seen from here; 0 if it is not running."""
        deadline = time.monotonic() + wait_s
        while (popen := self._popen) is not None:
            found = _children(popen.pid)
            if found or time.monotonic() > deadline:
                return found[0] if found else 0
            time.sleep(0.01)
        return 0

    def exec(
        self, argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in here, with the container's environment.

        Raises ``subprocess.TimeoutExpired`` after ending the command, ``ProcessLookupError`` if
        the container is not running.
        """
        pid = self.main_pid()
        if not pid:
            raise ProcessLookupError(f"container {self.name} is not running")
        shell = ["bash", "-c", _CHDIR, self._folder()]
        entered = ["nsenter", "-t", str(pid), "-n", "-m", "-i", "-u", "-p", "--", *shell]
        child = subprocess.Popen(
            [*entered, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self._env, **(env or {})},
            text=True,
            start_new_session=True,
        )
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as expired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
            expired.stdout, expired.stderr = out, err
            raise
        return subprocess.CompletedProcess(list(argv), child.returncode, out, err)

    def pids(self) -> list[int]:
        """All of its processes, as seen from here."""
        main = self.main_pid(wait_s=0.0)
        if not main:
            return []
        space = _pid_space(main)
        return [int(p) for p in os.listdir("/proc") if p.isdigit() and _pid_space(int(p)) == space]

    def _folder(self) -> str:
        return str(self.spec.get("workingDir") or HOME)


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _pid_space(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""
