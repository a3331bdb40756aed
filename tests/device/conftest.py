from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

import hipgemm as hg
from hipgemm.kernels.manifest import MATRIX_ARCHS, code_object, load_manifest
from hipgemm.runtime import hip as _hip


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("matrix")
    if marker and not has_matrix_kernels(*marker.args):
        pytest.skip(f"needs matrix kernels for {', '.join(marker.args) or 'all formats'}")
    marker = item.get_closest_marker("arch")
    if marker and _hip.arch(0) not in marker.args:
        pytest.skip(f"has a meaning on {', '.join(marker.args)} only")


def products(arch: str) -> set[tuple[str, str, str]]:
    """Operations and formats of the matrix kernels of an architecture."""
    return {(k.op, k.a, k.b) for k in code_object(arch).kernels.values() if k.layout}


@cache
def has_matrix_kernels(*formats: str) -> bool:
    """Whether the device has all matrix kernels that any architecture built has, for any or these formats."""
    known = set.union(*(products(arch) for arch in load_manifest() if arch in MATRIX_ARCHS))
    return products(_hip.arch(0)) >= {x for x in known if not formats or set(x[1:]) <= set(formats)}


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    hg.reset_usage()


@pytest.fixture
def matrix_kernels() -> bool:
    return has_matrix_kernels()


@pytest.fixture
def bf16_kernels() -> bool:
    return has_matrix_kernels("bf16")


@pytest.fixture
def use_kernel() -> Iterator[Callable[[str], None]]:
    """Use one kernel for the rest of a test, instead of the cost model's choice."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(hg.config(kernel=name))


@pytest.fixture
def emulator() -> Any:
    """The emulator's library, for tests with the marker `emulator`."""
    return _hip.runtime().emulator


@pytest.fixture
def device_memory() -> Callable[[int], None]:
    """Skip if the device has fewer bytes free. On the emulator only touched pages count."""

    def need(nbytes: int) -> None:
        free, _ = _hip.memory_info(0)
        if free < nbytes:
            pytest.skip(f"needs {nbytes / 2**30:.0f} GiB of device memory; {free / 2**30:.0f} GiB are free")

    return need


@pytest.fixture
def run_on_devices(run_python: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a snippet in a process with two devices or more: the emulator's, or the GPUs present."""

    def run(code: str, **environment: str) -> str:
        runtime = _hip.runtime()
        if runtime.kind == "emulator":
            monkeypatch.setenv("HIPGEMM_EMULATOR_DEVICES", "2")
        elif runtime.devices < 2:
            pytest.skip("needs two devices; there is one")
        done = run_python(code, **environment)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    return run


@pytest.fixture
def free_bytes() -> Callable[[], int]:
    """Free device memory, to detect leaks."""
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
