import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from session_runtime import SessionRuntime

import hipgemm
from hipgemm.kernels.manifest import ARCHS

TESTED = "gfx950"  # by `make test`


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz", type=int, metavar="N", help="run so many random calls of each kind")
    parser.addoption(
        "--fuzz-case", type=int, action="append", metavar="SEED", help="run this random call only; repeatable"
    )
    parser.addoption(
        "--part",
        choices=["all", "emulated", "others"],
        default="all",
        help="only tests that need the emulator, on it; or only the others, on what HIPGEMM_RUNTIME asks for",
    )
    parser.addoption(
        "--needs", action="store_true", help="list which tests need the emulator and why; run none"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Of `-n auto`: on the emulator a process of one thread for each core, and one more, since some tests
    wait; on a GPU all tests in one.
    """
    try:
        runtime = SessionRuntime(config).open()
    except pytest.exit.Exception:
        return 0  # the error is raised when the session starts
    if runtime != "emulator":
        return 0
    for threads in ("HIPGEMM_EMULATOR_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(threads, "1")
    return len(os.sched_getaffinity(0)) + 1


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SessionRuntime(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` does not run: the folder packaging, and other architectures."""
    for item in items:
        arch = item.callspec.params.get("arch") if hasattr(item, "callspec") else None
        if "tests/packaging/" in item.nodeid or (arch in ARCHS and arch != TESTED):
            item.add_marker(pytest.mark.packaging)


@pytest.fixture(scope="module", autouse=True)
def _little_to_collect() -> None:
    """Many tests collect garbage: not for 0.1 s each time, among pytest's objects and what is cached."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20260101)


@pytest.fixture
def configure() -> Iterator[Callable[..., None]]:
    """Change settings of hipgemm until the test ends."""
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(hipgemm.config(**changes)) and None


@pytest.fixture
def run_python(request: pytest.FixtureRequest) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a snippet in another process, with variables set (or unset, by None)."""

    def run(code: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
        emulated = environment.get("HIPGEMM_RUNTIME") == "emulator" or any(
            name.startswith("HIPGEMM_EMULATOR_") for name in environment
        )
        if emulated and not request.node.get_closest_marker("emulator"):
            pytest.fail("a test that asks for the emulator needs the marker emulator(reason)")
        merged = {**os.environ, **{name: value or "" for name, value in environment.items()}}
        for name, value in environment.items():
            if value is None:
                del merged[name]
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, env=merged, timeout=120)

    return run
