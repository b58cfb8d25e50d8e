"""Processes as the kernel shows them: who descends from whom, and ending all of them safely.

Used by the warden (watch, kill, sweep) and by the worker (children of a cancelled job). Only
/proc, pidfds and signals; no Ray, no lease words. A process is named by its pid *and* its start
time, so that a pid that was used again is never mistaken for the old process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

#: Set in the environment of every worker to the path of its lease word, and inherited by what it
#: starts. (The worker's name would not do: another pool on this machine may have one like it.)
MARKER = "FIREPOOL_WORD"

_PR_SET_CHILD_SUBREAPER = 36
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ENDED_STATES = frozenset("ZXx")


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    start: int  #: clock ticks since boot
    state: str  #: one letter, as in ps

    @property
    def ended(self) -> bool:
        """Its main thread is dead. Others may still live: only a ``Handle`` knows for sure."""
        return self.state in _ENDED_STATES


def look(pid: int) -> Process | None:
    """The process with this pid now, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(1024)
    except OSError:
        return None
    return _parse_stat(pid, text)


def _parse_stat(pid: int, text: bytes) -> Process | None:
    # The name in brackets may hold spaces and brackets itself: start behind the last one.
    fields = text[text.rfind(b")") + 2 :].split(maxsplit=20)
    if len(fields) < 20:
        return None
    return Process(pid, int(fields[1]), int(fields[19]), fields[0].decode())


def name_of(pid: int) -> str:
    """The name of a living process as the kernel knows it, at most 15 bytes; "" if it is gone."""
    return _read(pid, "comm").decode(errors="replace").rstrip("\n")


def is_at_rest(pid: int) -> bool:
    """Whether no thread of the process runs or waits for a processor; True if it is gone.

    What a process was about to do when it got no processor, it has still to do: a pause of fixed
    length says nothing about that, the states of its threads do.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    stats = (_read(pid, f"task/{thread}/stat") for thread in threads)
    return all(text[text.rfind(b")") + 2 :][:1] not in (b"R", b"D") for text in stats)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    fields = _read(pid, "statm").split()
    return int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else 0


def parent_named(name: str) -> Handle | None:
    """This process's parent, if that is its name: Ray starts its workers below the raylet."""
    parent = look(os.getppid())
    if parent is None or name_of(parent.pid) != name:
        return None
    return Handle.open(parent.pid, parent.start)


def start_of(pid: int) -> int:
    """Start time of a living process in clock ticks since boot. Raises ``ProcessLookupError``."""
    process = look(pid)
    if process is None:
        raise ProcessLookupError(f"no process {pid}")
    return process.start


def ticks_at(boot_s: float) -> int:
    """Seconds since boot as start times are counted."""
    return int(boot_s * os.sysconf("SC_CLK_TCK"))


def is_alive(pid: int, start: int) -> bool:
    handle = Handle.open(pid, start)
    if handle is None:
        return False
    alive = not handle.ended()
    handle.close()
    return alive


def table() -> dict[int, Process]:
    """Every process there is, by pid. Costs some 10 microseconds per process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = look(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def descendants(root: int, among: dict[int, Process]) -> list[Process]:
    """Everything below ``root``, parents first, without ``root`` itself."""
    children: dict[int, list[Process]] = {}
    for process in among.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    front = [root]
    while front:
        below = [child for pid in front for child in children.get(pid, ())]
        found.extend(below)
        front = [child.pid for child in below]
    return found


def adopt_orphans() -> None:
    """Make this process the parent of orphans below it, so that they stay in its tree."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"cannot become a subreaper: {os.strerror(errno)}")


class Handle:
    """A pidfd: signals and waits hit exactly this process, however pids are used again."""

    def __init__(self, pid: int, start: int, fd: int) -> None:
        self.pid = pid
        self.start = start
        self.fd = fd

    @classmethod
    def open(cls, pid: int, start: int) -> Handle | None:
        """None if the process is gone. The start time is checked after the fd holds it."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return None
        process = look(pid)
        if process is None or process.start != start:
            os.close(fd)
            return None
        return cls(pid, start, fd)

    def signal(self, number: int) -> bool:
        try:
            signal.pidfd_send_signal(self.fd, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def ended(self, wait_s: float = 0.0) -> bool:
        """Whether it has ended (a zombie has); waits up to ``wait_s`` for it."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(max(0.0, wait_s) * 1000))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@contextlib.contextmanager
def _handles(processes: Iterable[Process]) -> Iterator[list[Handle]]:
    handles: list[Handle] = []
    try:
        for process in processes:
            handle = Handle.open(process.pid, process.start)
            if handle is not None:
                handles.append(handle)
        yield handles
    finally:
        for handle in handles:
            handle.close()


def freeze_tree(root: Process, known: Collection[tuple[int, int]] = ()) -> list[Process]:
    """Stop ``root`` and all below it; returns them, root first.

    A stopped process starts no children, so the walk is repeated until it finds nobody new.
    ``known`` are (pid, start) of former descendants that may have been adopted elsewhere.
    """
    seen: set[tuple[int, int]] = set()
    stopped: list[Process] = []
    while True:
        now = table()
        members = [p for p in now.values() if (p.pid, p.start) in known]
        if (top := now.get(root.pid)) is not None and top.start == root.start:
            members.insert(0, top)
        members += [d for m in list(members) for d in descendants(m.pid, now)]
        new = {(p.pid, p.start): p for p in members if (p.pid, p.start) not in seen}
        if not new:
            return stopped
        seen.update(new)
        with _handles(new.values()) as handles:
            for handle in handles:
                if not handle.ended():
                    handle.signal(signal.SIGSTOP)
                    stopped.append(new[handle.pid, handle.start])


def kill_all(processes: Iterable[Process], wait_s: float) -> list[Process]:
    """SIGKILL them and wait; returns those still there after ``wait_s`` (in the kernel, say)."""
    processes = list(processes)
    deadline = time.monotonic() + wait_s
    with _handles(processes) as handles:
        for handle in handles:
            handle.signal(signal.SIGKILL)
        left = {h.pid for h in handles if not h.ended(deadline - time.monotonic())}
    return [process for process in processes if process.pid in left]


def kill_tree(
    pid: int, start: int, wait_s: float, known: Collection[tuple[int, int]] = ()
) -> list[Process]:
    """End a process and everything below it; returns what did not end within ``wait_s``."""
    return kill_all(freeze_tree(Process(pid, 0, start, "R"), known), wait_s)


def kill_below(root: int, start: int, wait_s: float) -> list[Process]:
    """End the descendants of ``root`` that started at ``start`` or later, but not ``root``."""
    return kill_all(_freeze_below(root, start), wait_s)


def kill_own_since(start: int, wait_s: float) -> list[Process]:
    """As ``kill_below`` this process. Its children among them are collected: no zombies stay."""
    below = _freeze_below(os.getpid(), start)
    left = kill_all(below, wait_s)
    _collect(process.pid for process in below)
    return left


def _freeze_below(root: int, start: int) -> list[Process]:
    frozen: dict[int, Process] = {}
    while True:
        below = [p for p in descendants(root, table()) if p.start >= start and p.pid not in frozen]
        if not below:
            return list(frozen.values())
        with _handles(below) as handles:
            for handle in handles:
                handle.signal(signal.SIGSTOP)
        frozen.update((process.pid, process) for process in below)


def _collect(pids: Iterable[int]) -> None:
    # An orphan becomes a child when its parent's exit is processed: collect in several rounds.
    waiting = set(pids)
    for _ in range(3):
        for pid in list(waiting):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
                waiting.discard(pid)
        if not waiting:
            return


def find_marked(word_path: str, not_before: int, spare: Collection[int]) -> list[Process]:
    """What a worker left behind outside of its tree.

    Found by the environment marker (programs it started) or by the mapping of its lease word
    (children forked without exec). Processes older than ``not_before`` cannot be its own, nor
    those in ``spare``.
    """
    marker = f"{MARKER}={word_path}".encode()
    path = word_path.encode()
    found = []
    for process in table().values():
        if process.start < not_before or process.pid in spare or process.ended:
            continue
        if _is_marked(process.pid, marker) or _maps_file(process.pid, path):
            found.append(process)
    return found


def _is_marked(pid: int, marker: bytes) -> bool:
    return marker in _read(pid, "environ").split(b"\0")


def _maps_file(pid: int, path: bytes) -> bool:
    maps = _read(pid, "maps")
    ends = (b" " + path, b" " + path + b" (deleted)")
    return path in maps and any(line.endswith(ends) for line in maps.splitlines())


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:  # gone meanwhile, or not ours to read
        return b""


def exit_text(pid: int, start: int) -> str:
    """How a process ended, as far as the kernel still tells: its parent may have collected it."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(1024)
    except OSError:
        return "the process ended"
    process = _parse_stat(pid, text)
    if process is None or process.start != start or not process.ended:
        return "the process ended"
    status = int(text.split()[-1])
    if os.WIFSIGNALED(status):
        return f"the process was ended by signal {os.WTERMSIG(status)}"
    return f"the process exited with code {os.WEXITSTATUS(status)}"
