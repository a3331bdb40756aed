from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def code_object(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of hipapi.SOURCE, compiled for the emulated GPU."""
    import hipapi

    return hipapi.compile_hip(hipapi.SOURCE, tmp_path_factory.mktemp("kernels") / "kernels.co")


@pytest.fixture
def kernel(code_object: Path) -> Iterator[Callable[[str], Any]]:
    """A kernel of it by name, from a module loaded for this test."""
    from hipapi import check, hip

    module = check(hip.hipModuleLoad(str(code_object).encode()))
    yield lambda name: check(hip.hipModuleGetFunction(module, name.encode()))
    check(hip.hipModuleUnload(module))
