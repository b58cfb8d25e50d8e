"""The ``firepool`` command. Nothing imports this package; it imports everything below it.

Empty, so that a worker that runs a job of the benchmark imports next to nothing.
"""
