"""Tests of the bridge with other CUDA libraries: only if hipgemm runs on it."""

import os

if os.environ.get("HIPGEMM_RUNTIME") != "bridge":
    collect_ignore_glob = ["test_*.py"]
