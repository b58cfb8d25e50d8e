"""Two pure machines: ``machine`` decides for the pool, ``pump`` for one client.

Standard library only. No Ray, clock, randomness, threads, logging or I/O may enter this package:
every event carries ``at`` (seconds on its driver's clock), every effect leaves as an action.
Controller, client and simulator drive the same objects.
"""
