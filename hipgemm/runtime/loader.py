"""Selects and opens the HIP runtime: ROCm, emulator or bridge. Only this module imports hip-python."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ..config import config
from ..errors import RuntimeFallbackWarning, RuntimeNotFoundError, warn
from . import rocm as _rocm
from .ownership import once

PACKAGE = Path(__file__).parent.parent
EMULATOR = PACKAGE / "_emulator" / "libamdhip64.so"
BRIDGE = PACKAGE / "_bridge" / "libamdhip64.so"  # HIP over the CUDA driver

_HIP_SUCCESS = 0


@dataclass
class Runtime:
    """The HIP runtime of this process, opened."""

    kind: str  # rocm, emulator or bridge
    hip: Any  # hip-python, a module
    library: str  # the path that hip-python uses
    devices: int  # the number of devices
    bindings: _rocm.Bindings  # the versions of hip-python and of the HIP it was made for
    emulator: ctypes.CDLL | None = None
    handle: Any = None  # the library, opened by ctypes
    reporter: Callable[[], bytes | None] | None = None  # of the emulator and the bridge
    pools: list[Any] = field(default_factory=list)
    staging: list[Any] = field(default_factory=list)
    archs: dict[int, str] = field(default_factory=dict)
    peers: dict[tuple[int, int], bool] = field(default_factory=dict)
    streams: dict[int, int] = field(default_factory=dict)  # hipgemm's own streams: handle to device
    own_streams: list[Any] = field(default_factory=list)  # by device
    events: dict[tuple[int, bool], Any] = field(default_factory=dict)  # by device and timing
    set_device: Any = None  # hipSetDevice, which raises
    restore_device: Any = None  # hipSetDevice, which does not

    def report(self) -> str:
        """The emulator's or the bridge's report of the last error; empty for ROCm."""
        text = self.reporter() if self.reporter else None
        return (text or b"").decode(errors="replace").strip()


open_hooks: list[Callable[[Runtime], None]] = []  # called with the runtime when it is opened
_runtime: Runtime | None = None
_opened: dict[None, Runtime] = {}
_forked = False


def _after_fork() -> None:
    global _runtime, _forked
    _forked = _forked or _runtime is not None
    _runtime = None
    _opened.clear()


os.register_at_fork(after_in_child=_after_fork)


def runtime() -> Runtime:
    """Return the runtime. The first call selects and opens it."""
    global _runtime
    if _runtime is None:
        _runtime = once(_opened, None, _choose_and_fix)
    return _runtime


def opened() -> Runtime | None:
    """Return the runtime if it is open."""
    return _runtime


def _choose_and_fix() -> Runtime:
    found = _choose()
    config.fix("the first use of a device", "runtime", "pool", "memory_limit", "cache_limit")
    return found


def _choose() -> Runtime:
    if _forked:
        raise RuntimeNotFoundError(
            "this process was forked from one that uses the GPU, and HIP does not survive a fork; "
            "use multiprocessing's 'spawn' start method"
        )
    mode = config.runtime
    try:
        from hip import hip
    except ImportError as error:
        raise RuntimeNotFoundError(
            f"hip-python cannot be imported ({error}); run: pip install 'hip-python>=6.4,<11'"
        ) from error

    # A process can load only one library of this name, and hip-python would use the loaded one.
    ours = BRIDGE if mode == "bridge" else EMULATOR
    foreign = [path for path in _mapped_libraries() if not _same_file(path, ours)]
    if mode in ("emulator", "bridge"):
        if foreign:
            raise RuntimeNotFoundError(
                f"HIPGEMM_RUNTIME={mode}, but this process has already opened {foreign[0]}; "
                "use hipgemm before anything else that opens ROCm, or in a separate process"
            )
        return _open_ours(hip, mode)
    try:
        return _open(hip, "rocm", _rocm.probe(foreign[:1] or _rocm.candidates(), _bindings()))
    except _rocm.UnusableError as why:
        if mode == "rocm":
            raise RuntimeNotFoundError(f"ROCm cannot be used: {why} (HIPGEMM_RUNTIME=rocm)") from None
        if foreign:
            raise RuntimeNotFoundError(
                f"ROCm cannot be used: {why}; the emulator cannot be used instead, because this process has "
                "already opened that library"
            ) from None
        instead = _open_ours(hip, "emulator", f"and ROCm cannot be used: {why}")
        warn(
            RuntimeFallbackWarning,
            f"hipgemm runs on its emulator: {why} (HIPGEMM_RUNTIME=emulator hides this warning)",
        )
        return instead


def _bindings() -> _rocm.Bindings:
    package = import_module("hip")
    major, minor = package.HIP_VERSION_TUPLE[:2]
    return _rocm.Bindings(str(package.VERSION), (int(major), int(minor)))


def _is_version_10(hip: Any) -> bool:
    """Whether hip-python searches for the library itself; version 7 relies on the dynamic loader."""
    return str(hip.__name__).startswith("rocm.")


def _open_ours(hip: Any, kind: str, context: str = "") -> Runtime:
    """Open the emulator or the bridge."""
    library = BRIDGE if kind == "bridge" else EMULATOR
    if not library.exists():
        only = " (in a source tree; an installed package has no bridge)" if kind == "bridge" else ""
        why = f"{library} is missing{', ' + context if context else ''}"
        raise RuntimeNotFoundError(f"the {kind} is not built: {why}; run: make {kind}{only}")
    return _open(hip, kind, str(library))


def _open(hip: Any, kind: str, library: str) -> Runtime:
    """Make hip-python open this library, without changing the environment."""
    try:
        # An open library is also found by its bare name, which hip-python may ask for.
        handle = ctypes.CDLL(library)
        with _library_override(hip, library):
            error, devices = hip.hipGetDeviceCount()
    except (OSError, RuntimeError) as failure:
        raise RuntimeNotFoundError(f"{library} cannot be opened: {failure}") from failure
    if os.sep in library:
        others = [path for path in _mapped_libraries() if not _same_file(path, library)]
        if others:
            raise RuntimeNotFoundError(f"hip-python has opened {others[0]} instead of {library}")
    found = Runtime(kind, hip, library, int(devices), _bindings(), handle=handle)
    if kind in ("emulator", "bridge"):
        reporter: Any = getattr(handle, f"hipgemm_{kind}_last_report")
        reporter.restype = ctypes.c_char_p
        found.reporter = reporter
    if kind == "emulator":
        found.emulator = handle
    if int(error) != _HIP_SUCCESS or devices < 1:
        why = ": ".join(filter(None, (getattr(error, "name", str(error)), found.report())))
        needs = "; HIPGEMM_RUNTIME=bridge needs an NVIDIA GPU and its driver" if kind == "bridge" else ""
        raise RuntimeNotFoundError(f"{library} reports no device ({why}){needs}")
    for prepare in open_hooks:
        prepare(found)
    return found


@contextmanager
def _library_override(hip: Any, library: str) -> Iterator[None]:
    """Replace hip-python's library search by a fixed path."""
    encoded = os.fsencode(library)
    value: Any
    if _is_version_10(hip):
        module, name = import_module("rocm.bindings.util.paths"), "get_library_path"
        value = lambda shortname, *rest: encoded  # noqa: E731
    else:
        module, name, value = import_module("hip.chip"), "DLL", encoded
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _mapped_libraries() -> list[str]:
    """The paths of every libamdhip64 that this process has loaded."""
    try:
        maps = os.fsdecode(Path("/proc/self/maps").read_bytes())
    except OSError:
        return []
    found = re.findall(r"\s(/[^\n]*libamdhip64[^/\n]*\.so[^/\n]*)$", maps, re.MULTILINE)
    # The kernel writes a newline in a name as \012.
    return sorted({path if os.path.exists(path) else path.replace(r"\012", "\n") for path in found})


def _same_file(a: str | Path, b: str | Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False


def launch_extra(config: int) -> Any:
    """Wrap the address of a HIP_LAUNCH_PARAM list, once for all launches."""
    package = "rocm.bindings" if _is_version_10(runtime().hip) else "hip"
    return import_module(f"{package}._hip_helpers").HipModuleLaunchKernel_extra.fromObj(config)
