"""Distributions of costs: text forms, means, seeded draws."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from firepool_ray.errors import TraceError, UsageError
from firepool_ray.sim import costs
from firepool_ray.sim.costs import Constant, Costs, Draws, Empirical, LogNormal, Uniform, parse


def test_text_forms(tmp_path: Path) -> None:
    assert parse("22") == Constant(22.0)
    assert parse("lognormal:20,0.5") == LogNormal(20.0, 0.5)
    assert parse("uniform:1,3") == Uniform(1.0, 3.0)
    file = tmp_path / "cold.csv"
    file.write_text("pod,cold_start_s\na,2.5\nb,7.5\n")
    found = parse(str(file))
    assert isinstance(found, Empirical)
    assert found.values_s == (2.5, 7.5)
    assert found.mean_s == 5.0


@pytest.mark.parametrize(
    "text", ["", "fast", "lognormal:1", "uniform:1,x", "-1", "inf", "uniform:3,1", "lognormal:0,1"]
)
def test_what_is_no_time_is_told(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seconds\n1\n", "line 1: no column cold_start_s"),
        ("cold_start_s\n1\nx\n", "line 3: 'x' is not a number"),
        ("cold_start_s\n-1\n", "line 2: '-1' is not a number of seconds >= 0"),
        ("cold_start_s\n", "no values"),
    ],
)
def test_a_wrong_file_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "cold.csv"
    file.write_text(text)
    with pytest.raises(TraceError, match=message):
        parse(str(file))


@pytest.mark.parametrize(
    "distribution",
    [Constant(3.0), LogNormal(2.0, 0.6), Uniform(1.0, 4.0), Empirical([1.0, 2.0, 6.0])],
)
def test_draws_have_the_mean(distribution: costs.Distribution) -> None:
    chance = random.Random(5)
    drawn = [distribution.draw(chance) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(distribution.mean_s, rel=0.03)
    assert min(drawn) >= 0


def test_each_kind_has_its_own_seeded_stream() -> None:
    prices = Costs(cold=Uniform(1, 9), promote=Uniform(1, 9), message=Uniform(0, 1))
    one, two, other = Draws(prices, 1), Draws(prices, 1), Draws(prices, 2)
    for _ in range(5):
        two.promote_s()
        two.message_s()
    colds = [one.cold_s() for _ in range(5)]
    assert colds == [two.cold_s() for _ in range(5)]
    assert colds != [other.cold_s() for _ in range(5)]
    assert not one.instant
    assert Draws(Costs(), 1).instant
