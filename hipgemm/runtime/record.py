"""Small files about devices, kept from process to process: one for each device, driver and subject."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..config import config, variable
from ..errors import warn
from . import hip

# Subjects, and the commands that write their files.
PRIMITIVES = "primitives"  # what failed: {"failed": names, "kernels": hash of the code object}
TUNED = "tuned"  # times of kernels: {"products": {shape: {kernel: times}}}
_COMMANDS = {
    PRIMITIVES: "python -m hipgemm selftest --primitives",
    TUNED: "python -m hipgemm tune",
}


def folder() -> Path:
    """Where they are: HIPGEMM_CACHE_DIR, else hipgemm in the user's cache folder."""
    if config.cache_dir is not None:
        return Path(config.cache_dir)
    return Path(variable("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "hipgemm"


def unwritable() -> str:
    """Why no record can be written; empty if one can."""
    import tempfile  # slow to import, and only this function needs it

    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder()):
            return ""
    except OSError as error:
        return f"results cannot be kept in {folder()} ({error}); HIPGEMM_CACHE_DIR names another folder"


def device_key(device: int) -> dict[str, str]:
    """What a record is about: a device, its driver and its HIP library."""
    name = hip.properties(device).name
    return {
        "device": f"{name.decode() if isinstance(name, bytes) else name}, {hip.arch(device)}",
        "runtime": hip.runtime().kind,
        "version": str(int(hip.call("hipRuntimeGetVersion"))),
        "driver": hip.driver_version(),
    }


def path_of(subject: str, device: int, **more: str) -> Path:
    """The file for a subject, a device, and what `more` says."""
    key = json.dumps({**device_key(device), **more}, sort_keys=True)
    return folder() / f"{subject}_{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def read(subject: str, device: int, **more: str) -> dict[str, Any]:
    """What was written; empty if nothing was, or, with a warning, if it cannot be read."""
    path = path_of(subject, device, **more)
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        warn_of_damage(subject, path, error)
        return {}
    if isinstance(found, dict):
        return found
    warn_of_damage(subject, path, "no JSON object")
    return {}


def warn_of_damage(subject: str, path: Path, why: object) -> None:
    """Warn that a record is ignored."""
    warn(RuntimeWarning, f"{path} is damaged and ignored ({why}); to write it again: {_COMMANDS[subject]}")


def update(
    subject: str, device: int, change: Callable[[dict[str, Any]], dict[str, Any]], **more: str
) -> Path | None:
    """Replace a record by what `change` makes of it; delete it, and return None, if that is empty.

    No change of another process is lost, and a process that reads sees the old record or the new one.
    """
    path = path_of(subject, device, **more)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        content = change(read(subject, device, **more))
        if not content:
            path.unlink(missing_ok=True)
            return None
        new = path.with_suffix(f".{os.getpid()}")
        try:
            new.write_text(json.dumps({**device_key(device), **more, **content}, indent=1) + "\n")
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)
    return path


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other processes out; the system lets them in when this one ends, however it does."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@lru_cache(maxsize=64)
def failed_primitives(device: int) -> dict[str, Any]:
    """What `selftest --primitives` found wrong on a device; read once in a process."""
    return read(PRIMITIVES, device) if config.failed_primitives == "refuse" else {}


def has_failed(name: str, device: int) -> bool:
    """Whether a primitive failed that does not depend on kernels."""
    return name in failed_primitives(device).get("failed", ())
