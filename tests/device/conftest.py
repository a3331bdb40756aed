from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import hipgemm as hg
from hipgemm.kernels.manifest import GEMMS, code_object
from hipgemm.runtime import hip as _hip


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("matrix") and not has_matrix_kernels():
        pytest.skip("needs the matrix kernels")


def has_matrix_kernels() -> bool:
    """Whether the device has more than the kernels that all architectures have."""
    built = code_object(_hip.arch(0)).kernels.values()
    return any(kernel.op in GEMMS for kernel in built)


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    hg.reset_usage()


@pytest.fixture
def matrix_kernels() -> bool:
    return has_matrix_kernels()


@pytest.fixture
def use_kernel() -> Iterator[Callable[[str], None]]:
    """Serve the rest of a test by one kernel, whatever the cost model says."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(hg.config(kernel=name))


@pytest.fixture
def emulator() -> Any:
    """For tests that only the emulator can survive or answer."""
    runtime = _hip.runtime()
    if runtime.kind != "emulator":
        pytest.skip("needs the emulator")
    return runtime.emulator


@pytest.fixture
def free_bytes() -> Callable[[], int]:
    """Free device memory, to see what leaks."""
    return lambda: int(_hip.runtime().hip.hipMemGetInfo()[1])


@pytest.fixture
def streams() -> Iterator[Callable[[], int]]:
    """Make streams that do not wait for the default stream."""
    made = []

    def make() -> int:
        made.append(_hip.call("hipStreamCreateWithFlags", 1))
        return int(made[-1])

    yield make
    for stream in made:
        _hip.synchronize(int(stream))
        _hip.call("hipStreamDestroy", stream)
