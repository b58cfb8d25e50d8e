"""The figures of ``firepool bench``: one module per group, each run in a process of its own.

A group is a module whose ``measure(names)`` yields ``Measured`` values; ``suite`` runs the groups
and judges what they measured by the targets in ``figures``.
"""
