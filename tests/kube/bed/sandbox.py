"""A pod's own network, mounts, host name and IPC; its containers run inside.

The pod sees this machine's files, but has its own /tmp, /run, /dev/shm and /etc/hosts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kube.bed import redis
from tests.kube.bed.controlplane import BRIDGE, GATEWAY
from tests.kube.bed.process import BedError, command

#: A container's home, empty for every pod.
HOME = "/tmp/home"
#: Paths that are a pod's own: nothing below them is this machine's.
OWN = ("/tmp", "/run", "/dev/shm")

_SETUP = """
set -e
hostname "$1"; hosts=$2; new_tmp=$3; shift 3
mount -t tmpfs tmpfs "$new_tmp"
mkdir "$new_tmp/home"
for kept in "$@"; do
    mkdir -p "$new_tmp/${kept#/tmp/}"
    mount --rbind "$kept" "$new_tmp/${kept#/tmp/}"
done
mount --bind "$hosts" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount --move "$new_tmp" /tmp
chmod 1777 /tmp /dev/shm
echo ready
exec sleep infinity
"""


class Sandbox:
    """Held open by one sleeping process; ``close`` ends that, the containers end theirs."""

    def __init__(self, host_name: str, number: int, hosts: Path, folder: Path) -> None:
        self.address = f"198.18.{1 + number // 250}.{1 + number % 250}"
        self._veth = f"pod{number}"
        new_tmp = folder / "tmp"
        new_tmp.mkdir()
        spaces = ["--net", "--mount", "--ipc", "--uts"]
        setup = ["bash", "-c", _SETUP, "setup", host_name[:63], str(hosts), str(new_tmp)]
        self._holder = subprocess.Popen(
            ["unshare", *spaces, *setup, *_kept_below_tmp()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout and self._holder.stderr
        if not self._holder.stdout.readline():
            raise BedError(f"no sandbox for {host_name}: {self._holder.stderr.read()}")
        self._join_network()

    def _join_network(self) -> None:
        pid = str(self._holder.pid)
        peer = ("peer", "name", "eth0", "netns", pid)
        command("ip", "link", "add", self._veth, "type", "veth", *peer)
        command("ip", "link", "set", self._veth, "master", BRIDGE, "up")
        inside = (
            f"ip link set lo up; ip addr add {self.address}/16 dev eth0; ip link set eth0 up; "
            f"ip route add default via {GATEWAY}"
        )
        command("nsenter", "-t", pid, "-n", "bash", "-ec", inside)

    def entered(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs ``argv`` in here, without a fork."""
        return ["nsenter", "-t", str(self._holder.pid), "-n", "-m", "-i", "-u", "--", *argv]

    def cut(self) -> None:
        """Nothing comes in or goes out any more, and nobody is told."""
        command("ip", "link", "set", self._veth, "nomaster")

    def mend(self) -> None:
        command("ip", "link", "set", self._veth, "master", BRIDGE)

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


def _kept_below_tmp() -> list[str]:
    """What a pod must see although it lies below /tmp: the environment, the code, Redis."""
    wanted = {sys.prefix, str(Path(__file__).parents[3])}
    wanted |= {str(redis.folder())} if redis.folder().exists() else set()
    return sorted(path for path in wanted if path.startswith("/tmp/"))
