"""Small files about devices, kept from process to process: one for each device, driver and subject."""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..config import config, variable
from . import hip


def folder() -> Path:
    """Where they are: HIPGEMM_CACHE_DIR, else hipgemm in the user's cache folder."""
    if config.cache_dir is not None:
        return Path(config.cache_dir)
    return Path(variable("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "hipgemm"


def device_key(device: int) -> dict[str, str]:
    """What a record is about: a device, its driver and its HIP library."""
    name = hip.properties(device).name
    return {
        "device": f"{name.decode() if isinstance(name, bytes) else name}, {hip.arch(device)}",
        "runtime": hip.runtime().kind,
        "version": str(int(hip.call("hipRuntimeGetVersion"))),
        "driver": str(int(hip.call("hipDriverGetVersion"))),
    }


def path_of(subject: str, device: int) -> Path:
    """The file for a subject and a device."""
    key = json.dumps(device_key(device), sort_keys=True)
    return folder() / f"{subject}_{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def read(subject: str, device: int) -> dict[str, Any]:
    """What was written; empty if nothing was, or it cannot be read."""
    try:
        found = json.loads(path_of(subject, device).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(subject: str, device: int, content: dict[str, Any]) -> Path:
    """Write a record, in one step: other processes see the old one or this."""
    path = path_of(subject, device)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps({**device_key(device), **content}, indent=1) + "\n")
    os.replace(new, path)
    return path


def remove(subject: str, device: int) -> None:
    """Delete a record if there is one."""
    path_of(subject, device).unlink(missing_ok=True)


PRIMITIVES = "primitives"  # the subject of what failed: {"failed": names, "kernels": hash of the code object}


@lru_cache(maxsize=64)
def failed_primitives(device: int) -> dict[str, Any]:
    """What `selftest --primitives` found wrong on a device; read once in a process."""
    return read(PRIMITIVES, device) if config.failed_primitives == "refuse" else {}


def has_failed(name: str, device: int) -> bool:
    """Whether a primitive failed that does not depend on kernels."""
    return name in failed_primitives(device).get("failed", ())
