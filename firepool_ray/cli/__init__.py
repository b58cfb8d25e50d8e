"""The ``firepool`` command. Nothing imports this package; it imports everything below it."""

from firepool_ray.cli.commands import main

__all__ = ["main"]
