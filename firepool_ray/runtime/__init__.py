"""The Ray side of the pool: controller, effects, lanes, worker, warden, lease words.

Everything here may import ray. Decisions are taken in ``core``; this package only carries them out.
"""
