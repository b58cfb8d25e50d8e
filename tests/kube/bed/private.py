"""Private network, mount and pid namespaces around one command.

Everything a bed starts lives in them, so it all ends with the command, however that ends: the
kernel kills a pid namespace whose first process goes, and that one goes with its parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import FrameType

from tests.kube.bed.process import BedError

#: Set inside, to the folder for what does not outlive the command.
_SCRATCH = "FIREPOOL_BED_SCRATCH"
#: Not /tmp, of which each pod has its own: pods see what is below by the same name.
OUTSIDE_TMP = "/var/tmp"


def enter(argv: Sequence[str]) -> int:
    """Runs a command in namespaces of its own; returns its exit code.

    Called outside them, from the command line.
    """
    inner = [sys.executable, "-m", "tests.kube.bed", "first", "--", *argv]
    spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    with tempfile.TemporaryDirectory(prefix="beds-", dir=OUTSIDE_TMP) as scratch:
        child = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *spaces, *inner],
            # gRPC otherwise asks a name server, which private networks do not have
            env={**os.environ, _SCRATCH: scratch, "GRPC_DNS_RESOLVER": "native"},
        )

        def end(number: int, frame: FrameType | None) -> None:
            child.kill()

        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells the command as well
        return _exit_code(child.wait())


def first_process(argv: Sequence[str]) -> int:
    """The first process of the namespaces: runs the command and reaps every orphan.

    Returns the command's exit code; all others in the namespaces die with this process.
    """
    signal.signal(signal.SIGINT, lambda *_: None)
    child = subprocess.Popen(argv)
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return _exit_code(os.waitstatus_to_exitcode(status))


def scratch() -> str:
    """Folder for what does not outlive the entered command.

    Raises ``BedError`` outside: a bed changes the network and mounts it finds.
    """
    if _SCRATCH not in os.environ:
        raise BedError("run this by: python -m tests.kube.bed enter -- COMMAND")
    return os.environ[_SCRATCH]


def _exit_code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode
