"""Latency counts: small, mergeable, right within a bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firepool_ray.observe.histogram import bucket_of, merge, middle_of, percentile


@given(st.floats(1e-6, 1e6))
def test_a_bucket_is_right_within_five_per_cent(seconds):
    assert middle_of(bucket_of(seconds)) == pytest.approx(seconds, rel=0.05, abs=1e-7)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-9, float("nan")])
def test_what_is_no_duration_counts_as_nothing(seconds):
    assert bucket_of(seconds) == 0


def test_the_last_bucket_takes_everything():
    assert bucket_of(1e300) == bucket_of(1e200) == 400


def test_percentiles_of_merged_counts():
    fast = {bucket_of(0.001): 99}
    slow = {bucket_of(1.0): 1}
    counts = merge([fast, slow, fast, {}])
    assert counts == {bucket_of(0.001): 198, bucket_of(1.0): 1}
    assert percentile(counts, 0.5) == pytest.approx(0.001, rel=0.05)
    assert percentile(counts, 1.0) == pytest.approx(1.0, rel=0.05)
    assert percentile({}, 0.5) is None
