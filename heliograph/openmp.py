"""The way in which OpenMP's idle threads wait, set before a library with OpenMP is loaded."""

from __future__ import annotations

import os
import sys

# OpenMP threads that spin while they wait make OpenFHE ten times slower as soon as another process runs. The setting is
# read when the first library with OpenMP is loaded, often torch, so it is made here; a setting of the user's own is kept.
GIVEN_POLICY = os.environ.get("OMP_WAIT_POLICY")
OPENMP_WAS_LOADED = GIVEN_POLICY is None and "torch" in sys.modules
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
