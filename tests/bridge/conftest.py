"""Tests of the bridge beside other libraries of CUDA: only where hipgemm runs on it."""

import os

if os.environ.get("HIPGEMM_RUNTIME") != "bridge":
    collect_ignore_glob = ["test_*.py"]
