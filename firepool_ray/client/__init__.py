"""The side that submits: pool, jobs, and the one door to Ray (``transport``).

One ``Client`` per process drives one ``core.pump.Pump``. Nothing here decides which worker runs
what: that is the pump's and the controller's.
"""
