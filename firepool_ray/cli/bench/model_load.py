"""Takes as long to import as a (small) model to load. A worker of the loops preloads this."""

from __future__ import annotations

import time

LOAD_S = 1.5

time.sleep(LOAD_S)
