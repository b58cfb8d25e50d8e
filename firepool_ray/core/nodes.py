"""Which lanes share a node, so that whole nodes (pods) become empty when fewer lanes are needed.

Called by ``lane_news`` and ``adoption``. A node's rank is the number of its first lane; ``shelves``
puts free lanes of a lower rank first, so that the oldest node fills and the newest empties.
"""

from __future__ import annotations

from firepool_ray.core.state import Lane, Pool


def settle(pool: Pool, lane: Lane, node: str) -> None:
    """The lane stands on ``node``."""
    lane.node = node
    rank, lanes = pool.nodes.get(node, (lane.number, 0))
    pool.nodes[node] = (rank, lanes + 1)
    lane.rank = rank


def depart(pool: Pool, lane: Lane) -> None:
    """The lane is gone. A node without lanes is forgotten."""
    if not lane.node:
        return
    rank, lanes = pool.nodes[lane.node]
    if lanes > 1:
        pool.nodes[lane.node] = (rank, lanes - 1)
    else:
        del pool.nodes[lane.node]
