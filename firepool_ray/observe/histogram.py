"""Latencies as counts in logarithmic buckets: small to send, mergeable, good for percentiles.

Clients count their jobs' start latencies here and state the counts with their syncs; controller
and command line merge and read them. Pure functions on plain dicts ``{bucket: count}``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

#: Eight buckets per doubling: a percentile is right within 4.5 per cent.
_PER_OCTAVE = 8
_FLOOR_S = 1e-6  #: bucket 0 holds everything up to a microsecond
_TOP = 400  #: and the last everything from about 30 years up

Counts = dict[int, int]


def bucket_of(seconds: float) -> int:
    """The bucket of a duration. Negative ones (clocks of two nodes differ) count as zero."""
    if not seconds > _FLOOR_S:
        return 0
    return min(_TOP, 1 + int(_PER_OCTAVE * math.log2(seconds / _FLOOR_S)))


def middle_of(bucket: int) -> float:
    """The geometric middle of a bucket, in seconds."""
    if bucket <= 0:
        return _FLOOR_S
    return float(_FLOOR_S * 2 ** ((bucket - 0.5) / _PER_OCTAVE))


def merge(many: Iterable[Mapping[int, int]]) -> Counts:
    """The sum of several histograms."""
    total: Counts = {}
    for counts in many:
        for bucket, count in counts.items():
            total[bucket] = total.get(bucket, 0) + count
    return dict(sorted(total.items()))


def percentile(counts: Mapping[int, int], q: float) -> float | None:
    """The duration in seconds that a share ``q`` (0 to 1) of all does not exceed.

    Nearest rank; None where nothing was counted.
    """
    total = sum(counts.values())
    if total == 0:
        return None
    rank = max(1, math.ceil(q * total))
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return middle_of(bucket)
    return middle_of(max(counts))
