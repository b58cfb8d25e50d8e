"""Jobs served so far, by source, with their start latencies. Kept by the controller.

Clients state cumulative counts with each sync; the newest statement of a client replaces its last.
When a client goes its counts are folded into the total, so memory depends on living clients only.
"""

from __future__ import annotations

from collections.abc import Mapping

from firepool_ray.core.model import SOURCES
from firepool_ray.observe import histogram

#: Per source: number of jobs, and their start latencies by bucket (see ``histogram``).
Statement = Mapping[str, tuple[int, Mapping[int, int]]]


class Served:
    def __init__(self) -> None:
        self._clients: dict[str, Statement] = {}
        self._past_jobs: dict[str, int] = {}
        self._past_counts: dict[str, histogram.Counts] = {}

    def update(self, client: str, statement: Statement) -> None:
        self._clients[client] = statement

    def fold(self, client: str) -> None:
        """The client is gone; what it did stays counted."""
        for source, (jobs, counts) in self._clients.pop(client, {}).items():
            self._past_jobs[source] = self._past_jobs.get(source, 0) + jobs
            past = self._past_counts.get(source, {})
            self._past_counts[source] = histogram.merge([past, counts])

    def sources(self) -> dict[str, int]:
        """Jobs by source, in the order of ``SOURCES``."""
        return {
            source: self._past_jobs.get(source, 0)
            + sum(said[source][0] for said in self._clients.values() if source in said)
            for source in SOURCES
        }

    def latencies(self) -> dict[str, dict[str, float | int]]:
        """Per source that served jobs: count and percentiles in seconds."""
        rows: dict[str, dict[str, float | int]] = {}
        for source in SOURCES:
            counts = histogram.merge(
                [
                    self._past_counts.get(source, {}),
                    *(said[source][1] for said in self._clients.values() if source in said),
                ]
            )
            p50 = histogram.percentile(counts, 0.5)
            p90 = histogram.percentile(counts, 0.9)
            p99 = histogram.percentile(counts, 0.99)
            if p50 is not None and p90 is not None and p99 is not None:
                rows[source] = {"count": sum(counts.values()), "p50": p50, "p90": p90, "p99": p99}
        return rows
