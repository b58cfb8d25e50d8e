"""The simulator: the pool's own machines under invented or recorded load, on a clock of its own.

Called by ``firepool simulate`` and by tests. Knows the core, the settings and the histogram; never
Ray, the client or the runtime. scipy and matplotlib are imported only where they are used.
"""
