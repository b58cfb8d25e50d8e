"""``python -m firepool_ray.cli.bench.group GROUP NAME...``: one group, in this process.

Started by ``suite``. Prints one JSON line ``[name, value, detail]`` per figure, as soon as it is
known.
"""

from __future__ import annotations

import importlib
import json
import sys


def main(group: str, *names: str) -> None:
    module = importlib.import_module(f"firepool_ray.cli.bench.{group}")
    for measured in module.measure(frozenset(names)):
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
