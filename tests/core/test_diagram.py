"""The drawings follow the tables, and the README follows the drawings."""

from __future__ import annotations

from pathlib import Path

from firepool_ray.core import diagram
from firepool_ray.core.pump_state import JOB_MOVES
from firepool_ray.core.tables import HELD_STATES, LANE_EDGES, WORKER_EDGES

README = Path(__file__).parents[2] / "README.md"


def test_every_edge_is_drawn_once() -> None:
    text = diagram.worker_diagram()
    for a, nexts in WORKER_EDGES.items():
        for b in nexts:
            assert text.count(f"    {a} --> {b}: ") == 1
    assert text.count("-->") == sum(map(len, WORKER_EDGES.values())) + 2
    assert diagram.lane_diagram().count("-->") == sum(map(len, LANE_EDGES.values())) + 2
    assert diagram.job_diagram().count("-->") == len(JOB_MOVES) + 2


def test_tables_are_closed_and_everything_ends() -> None:
    for table in (WORKER_EDGES, LANE_EDGES):
        for state, nexts in table.items():
            assert set(nexts) <= set(table)
            assert nexts or state == "gone"
    assert set(WORKER_EDGES) >= HELD_STATES


def test_drawings_in_the_readme_are_up_to_date() -> None:
    """Every state diagram there is one of ours, to the letter."""
    drawn = {diagram.worker_diagram(), diagram.lane_diagram(), diagram.job_diagram()}
    blocks = README.read_text().split("```mermaid\n")[1:]
    for block in blocks:
        text = block.partition("```")[0]
        if text.startswith("stateDiagram"):
            assert text in drawn, "paste what diagram.document() returns now"
