"""Tests that need several devices. On the emulator `test_in_child.py` runs them, with eight of them."""

import os

import pytest

MANY = (
    os.environ.get("HIPGEMM_EMULATOR_DEVICES", "1") not in ("", "1") or "HIPGEMM_TEST_DEVICES" in os.environ
)
if not MANY:
    collect_ignore_glob = ["test_sharding*.py"]


@pytest.fixture(autouse=True)
def peers() -> None:
    """HIPGEMM_TEST_PEERS=off: no device reaches another's memory."""
    from hipgemm.runtime import hip as _hip

    rt = _hip.runtime()
    if os.environ.get("HIPGEMM_TEST_PEERS") == "off":
        rt.peers.update({(i, j): False for i in range(rt.devices) for j in range(rt.devices)})


@pytest.fixture
def devices() -> list[int]:
    from hipgemm.runtime import hip as _hip

    return list(range(_hip.runtime().devices))
