"""A worker's last jobs, in a mmapped ring file: written without a call, read by the warden.

One writer, the worker; no lock. A reader may meet the record that is being written: each has a
checksum, and one that does not fit is left out. No Ray here.
"""

from __future__ import annotations

import mmap
import os
import struct
from zlib import crc32

from firepool_ray.core.model import Fence
from firepool_ray.runtime.protocol import JobRecord

#: Jobs a ring remembers.
RING_RECORDS = 256

_HEAD = struct.Struct("@8sQ")
_MAGIC = b"FPRING1\0"
_SUM = struct.Struct("@I")
_TEXT_BYTES = (96, 96, 256, 16, 16)  # job, name, caller, source, outcome
_BODY = struct.Struct("@QQdddd" + "".join(f"{size}s" for size in _TEXT_BYTES))
_RECORD_BYTES = (_SUM.size + _BODY.size + 7) // 8 * 8
_FIRST_AT = 64
_FILE_BYTES = _FIRST_AT + RING_RECORDS * _RECORD_BYTES


def ring_path(folder: str, worker: str) -> str:
    return os.path.join(folder, f"{worker}.ring")


class Ring:
    """The ring of one worker."""

    def __init__(self, path: str, worker: str, *, create: bool = False) -> None:
        self.path = path
        self._worker = worker
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        fd = os.open(path, flags, 0o600)
        try:
            if create:
                os.ftruncate(fd, _FILE_BYTES)
            self._map = mmap.mmap(fd, _FILE_BYTES)
        finally:
            os.close(fd)
        if create:
            _HEAD.pack_into(self._map, 0, _MAGIC, 0)

    def close(self) -> None:
        self._map.close()

    def append(self, fence: Fence, record: JobRecord) -> None:
        """Replace the oldest record. Texts that do not fit are cut."""
        texts = (record.job, record.name, record.caller, record.source, record.outcome)
        body = _BODY.pack(
            fence[0],
            fence[1],
            record.submitted_at,
            record.received_at,
            record.started_at,
            record.ended_at,
            *(text.encode()[:room] for text, room in zip(texts, _TEXT_BYTES, strict=True)),
        )
        _, count = _HEAD.unpack_from(self._map)
        at = _FIRST_AT + count % RING_RECORDS * _RECORD_BYTES
        entry = _SUM.pack(crc32(body)) + body
        self._map[at : at + len(entry)] = entry
        _HEAD.pack_into(self._map, 0, _MAGIC, count + 1)

    def read(self) -> list[tuple[Fence, JobRecord]]:
        """All records, oldest first, each with the fence of its lease."""
        _, count = _HEAD.unpack_from(self._map)
        found = []
        for number in range(max(0, count - RING_RECORDS), count):
            at = _FIRST_AT + number % RING_RECORDS * _RECORD_BYTES
            entry = self._map[at : at + _SUM.size + _BODY.size]
            if _SUM.unpack_from(entry)[0] == crc32(entry[_SUM.size :]):
                found.append(self._parse(entry[_SUM.size :]))
        return found

    def mentions(self, job: str) -> bool:
        """Whether there is a record of this job; much faster than ``read``."""
        return self._map.find(job.encode() + b"\0", _FIRST_AT) >= 0

    def _parse(self, body: bytes) -> tuple[Fence, JobRecord]:
        epoch, number, submitted, received, started, ended, *texts = _BODY.unpack(body)
        job, name, caller, source, outcome = (
            text.rstrip(b"\0").decode(errors="ignore") for text in texts
        )
        times = (submitted, received, started, ended)
        return Fence(epoch, number), JobRecord(
            job, name, caller, source, outcome, self._worker, *times
        )
