"""What the tests compile and assemble, kept in build/ under a hash of all that it depends on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

KEPT = Path(__file__).parents[2] / "build" / "tests"


def kept(make: Callable[[Path], bytes], *depends_on: str) -> bytes:
    """What `make` returns, which gets a folder to work in and is called if nothing is kept."""
    key = hashlib.sha256("\0".join((version("ziglang"), *depends_on)).encode()).hexdigest()[:32]
    file = KEPT / key
    if not file.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=KEPT) as folder:
            made = Path(folder) / "made"
            made.write_bytes(make(Path(folder)))
            os.replace(made, file)  # other processes see all of it or nothing
    return file.read_bytes()
