"""One long-lived program with its log, and the error that quotes it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_TAIL_BYTES = 3000


class BedError(RuntimeError):
    """The test cluster itself failed; the message carries what is known."""


class Process:
    """Started on construction; ``check`` raises once it has ended by itself."""

    def __init__(
        self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        with open(log, "ab") as file:
            self._popen = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises ``BedError`` with the end of the log if it is not running."""
        code = self._popen.poll()
        if code is not None:
            raise BedError(f"{self.name} ended with code {code}; its log ends:\n{self.tail()}")

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def wait(self, timeout_s: float) -> None:
        """Until it ends by itself."""
        self._popen.wait(timeout_s)

    def kill(self) -> None:
        """Ends it at once; nothing in a bed is worth an orderly end."""
        self._popen.kill()
        self._popen.wait()


def command(*argv: str | Path, timeout_s: float = 60.0) -> str:
    """Output of a short command; raises ``BedError`` with what it said if it fails."""
    done = subprocess.run(
        [str(arg) for arg in argv], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise BedError(f"{' '.join(map(str, argv))}: code {done.returncode}: {said}")
    return done.stdout
