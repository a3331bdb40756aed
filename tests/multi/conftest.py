"""Tests that need several devices. On the emulator `test_in_child.py` runs them, with eight of them."""

import os

import pytest

MANY = (
    os.environ.get("HIPGEMM_EMULATOR_DEVICES", "1") not in ("", "1") or "HIPGEMM_TEST_DEVICES" in os.environ
)
if not MANY:
    collect_ignore_glob = ["test_sharding*.py"]


@pytest.fixture
def devices() -> list[int]:
    from hipgemm import _hip

    return list(range(_hip.runtime().devices))
