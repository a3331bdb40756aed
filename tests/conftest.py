import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

import hipgemm


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz", type=int, metavar="N", help="run so many random calls of each kind")
    parser.addoption(
        "--fuzz-case", type=int, action="append", metavar="SEED", help="run this random call only; repeatable"
    )


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20260101)


@pytest.fixture
def configure() -> Iterator[Callable[..., None]]:
    """Change settings of hipgemm until the test ends."""
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(hipgemm.config(**changes)) and None


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a snippet in a process of its own, with variables set (or unset, by None)."""

    def run(code: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
        merged = {**os.environ, **{name: value or "" for name, value in environment.items()}}
        for name, value in environment.items():
            if value is None:
                del merged[name]
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, env=merged, timeout=120)

    return run
