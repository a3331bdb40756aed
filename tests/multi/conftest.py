"""Tests that need several devices. `test_in_child.py` runs them with eight of the emulator's."""

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from hipgemm.runtime import hip as _hip

    rt = _hip.runtime()
    if rt.kind == "emulator" and rt.devices < 2 and not config.getoption("needs"):
        several = [item for item in items if "devices" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=several)
        items[:] = [item for item in items if item not in several]


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

    count = _hip.runtime().devices
    if count < 2:
        pytest.skip("needs several devices; there is one")
    return list(range(count))
