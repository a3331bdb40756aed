"""ROCm's HIP library: where it is searched, a probe in a child process, and which hip-python matches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import variable
from .rocm_host import why_no_device

NAME = "libamdhip64.so"
MAJORS = (7, 6)  # of the library's soname, newest first
OPT = Path("/opt")
TIMEOUT_S = 60.0  # of the probe; a host with eight GPUs takes a few seconds

# Of hipGetDeviceCount.
_ERRORS = {
    3: "hipErrorNotInitialized",
    35: "hipErrorInsufficientDriver: the driver is older than the library",
    100: "hipErrorNoDevice",
    101: "hipErrorInvalidDevice",
}

# The functions that hipgemm calls, by the names that hip-python looks up in the library.
FUNCTIONS = (
    "hipDeviceCanAccessPeer",
    "hipDeviceEnablePeerAccess",
    "hipDeviceSynchronize",
    "hipDriverGetVersion",
    "hipEventCreateWithFlags",
    "hipEventElapsedTime",
    "hipEventQuery",
    "hipEventRecord",
    "hipEventSynchronize",
    "hipFree",
    "hipGetDevice",
    "hipGetDeviceCount",
    "hipGetDevicePropertiesR0600",
    "hipGetLastError",
    "hipGraphDestroy",
    "hipGraphExecDestroy",
    "hipGraphInstantiate",
    "hipGraphLaunch",
    "hipHostFree",
    "hipHostGetDevicePointer",
    "hipHostMalloc",
    "hipMalloc",
    "hipMemGetInfo",
    "hipMemcpy",
    "hipMemcpy2DAsync",
    "hipMemcpyAsync",
    "hipMemcpyPeerAsync",
    "hipMemset2DAsync",
    "hipMemsetAsync",
    "hipModuleGetFunction",
    "hipModuleLaunchKernel",
    "hipModuleLoadData",
    "hipModuleUnload",
    "hipPointerGetAttributes",
    "hipRuntimeGetVersion",
    "hipSetDevice",
    "hipStreamBeginCapture",
    "hipStreamCreateWithFlags",
    "hipStreamEndCapture",
    "hipStreamGetDevice",
    "hipStreamGetFlags",
    "hipStreamQuery",
    "hipStreamSynchronize",
    "hipStreamWaitEvent",
)

# The first HIP version of each series of ROCm releases, and the hip-python that is made for it.
_RELEASES = (
    ((6, 0), "ROCm 6", "hip-python>=6.4,<7"),
    ((7, 0), "ROCm 7.0 to 7.2", "hip-python>=7.0,<8"),
    ((7, 9), "ROCm 7.9 and newer", "hip-python>=10,<11"),  # ROCm 10.0 has HIP 7.15
)


class UnusableError(Exception):
    """The reason why ROCm cannot be used in this process."""


@dataclass(frozen=True)
class Bindings:
    """The installed hip-python: its version, and the HIP version whose headers it was generated from."""

    version: str
    hip: tuple[int, int]


def split_version(number: int) -> tuple[int, int, int]:
    """Split a HIP version number that the library reports.

    >>> split_version(70051831)
    (7, 0, 51831)
    """
    return number // 10_000_000, number // 100_000 % 100, number % 100_000


def dotted(number: int) -> str:
    """A HIP version number as it is printed.

    >>> dotted(70051831)
    '7.0.51831'
    """
    return ".".join(map(str, split_version(number)))


# ---- search ----------------------------------------------------------------------------------------


def candidates() -> list[str]:
    """Return the path of the library, or the names to try with the dynamic loader, in order.

    The search order: only the tree that ROCM_PATH names, or else ROCM_HOME, if one of them is set; ROCm's
    Python packages (rocm_sdk); /opt/rocm and /opt/rocm/core; the newest of /opt/rocm-* and
    /opt/rocm/core-*; the loader's path. In a tree, libamdhip64.so comes before .so.7, and that before .so.6.
    """
    for name in ("ROCM_PATH", "ROCM_HOME"):
        root = variable(name)
        if root:
            named = _in_tree(Path(root))
            if named is None:
                raise UnusableError(
                    f"{name}={root} has no lib/{NAME} or lib/{NAME}.N; correct it or unset it"
                )
            return [str(named)]
    trees = [OPT / "rocm", OPT / "rocm" / "core"]
    versioned = [*OPT.glob("rocm-*"), *(OPT / "rocm").glob("core-*")]
    trees += sorted(versioned, key=lambda tree: _numbers(tree.name), reverse=True)
    for path in (_in_packages(), *map(_in_tree, trees)):
        if path is not None:
            return [str(path)]
    return [NAME, *(f"{NAME}.{major}" for major in MAJORS)]


def _in_tree(root: Path) -> Path | None:
    """The library in a ROCm tree: libamdhip64.so of the development package, else the newest."""
    folders = [root / "lib", root / "lib64"]
    multiarch = sysconfig.get_config_var("MULTIARCH")  # Debian's packages, under /usr
    if multiarch:
        folders.append(root / "lib" / multiarch)
    for folder in folders:
        if (folder / NAME).exists():
            return folder / NAME
        versioned = [
            path for path in folder.glob(f"{NAME}.*") if re.fullmatch(r"(\.\d+)+", path.name[len(NAME) :])
        ]
        if versioned:  # the newest soname, not the file that it links to
            return max(versioned, key=lambda path: (_numbers(path.name[len(NAME) :])[0], -len(path.name)))
    return None


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _in_packages() -> Path | None:
    """The library of ROCm's own Python packages, if this environment has them."""
    try:
        from rocm_sdk import find_libraries

        return Path(find_libraries("amdhip64")[0])
    except (ImportError, LookupError, OSError):
        return None


# ---- the probe in a child process ------------------------------------------------------------------

# Prints each step before it runs, since a driver may hang or crash, and the result at the end.
_PROBE = r"""
import ctypes, json, re, sys
names, functions = json.loads(sys.argv[1])
def report(word, what):
    print("\n" + word, what, flush=True)
lib, faults = None, []
for name in names:
    report("at", "dlopen")
    try:
        lib = ctypes.CDLL(name)
        break
    except OSError as error:
        faults.append(str(error))
found = {"faults": faults, "opened": lib is not None}
if lib is not None:
    maps = open("/proc/self/maps", errors="surrogateescape").read()
    mapped = re.findall(r"\s(/[^\n]*libamdhip64[^/\n]*\.so[^/\n]*)$", maps, re.M)
    found["library"] = name if "/" in name or not mapped else mapped[0]
    found["emulated"] = any(hasattr(lib, f"hipgemm_{kind}_last_report") for kind in ("emulator", "bridge"))
    found["missing"] = [function for function in functions if not hasattr(lib, function)]
    def call(function, *arguments):
        report("at", function)
        return getattr(lib, function)(*arguments)
    number = ctypes.c_int(0)
    if hasattr(lib, "hipRuntimeGetVersion"):
        call("hipRuntimeGetVersion", ctypes.byref(number))
    found["version"], number.value = number.value, 0
    found["error"] = -1
    if hasattr(lib, "hipGetDeviceCount"):
        found["error"] = call("hipGetDeviceCount", ctypes.byref(number))
    found["devices"] = [""] * number.value
    for device in range(number.value if not found["missing"] else 0):
        buffer = ctypes.create_string_buffer(1 << 14)  # the struct has 1472 bytes, and begins with the name
        if call("hipGetDevicePropertiesR0600", buffer, device) == 0:
            arch = re.search(rb"gfx[0-9a-f]+", buffer.raw[256:])
            texts = [buffer.value, arch.group() if arch else b"?"]
            found["devices"][device] = ", ".join(text.decode(errors="replace") for text in texts)
report("found", json.dumps(found))
"""


def probe(names: Sequence[str], bindings: Bindings) -> str:
    """Open the first library that can be opened, in a child process; return its path.

    It uses a child process because a process cannot close a library, and drivers may hang or crash.

    Raises
    ------
    UnusableError
        If it cannot be opened, hangs or crashes, has no device, or does not match hip-python.
    """
    if not sys.executable:
        raise UnusableError(f"{names[0]} cannot be probed: sys.executable is not set")
    command = [sys.executable, "-I", "-S", "-c", _PROBE, json.dumps([names, FUNCTIONS])]
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise UnusableError(f"the probe of {names[0]} could not start ({error})") from error
    try:
        out, errors = child.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as late:
        _kill(child)
        raise UnusableError(
            f"the driver hangs: {names[0]}, {_stage(late.stdout)} has not returned within {TIMEOUT_S:g} s; "
            "see dmesg for amdgpu, and try rocminfo"
        ) from late
    last = re.search(rb"^found (.*)$", out, re.MULTILINE)
    if last is None:
        detail = errors.decode(errors="replace").strip().splitlines()
        stderr = f" ({detail[-1]})" if detail else ""
        raise UnusableError(f"the probe of {names[0]} ended with {child.returncode} in {_stage(out)}{stderr}")
    found = json.loads(last[1])
    if not found["opened"]:
        raise UnusableError(_why_not_opened(names, found["faults"]))
    library, version = str(found["library"]), split_version(found["version"])
    devices = tuple(map(str, found["devices"]))
    if found["emulated"]:
        raise UnusableError(f"{library} is an emulator")
    usable = found["error"] == 0 and devices
    if usable or found["missing"]:
        _require_match(library, version, found["missing"], devices, bindings)
    if not usable:
        code = int(found["error"])
        named = f"error {code}{', ' + _ERRORS[code] if code in _ERRORS else ''}"
        why = why_no_device() or "see dmesg for amdgpu, and try rocminfo"
        raise UnusableError(f"{library} reports no device ({named}): {why}")
    return library


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a child process. Do not wait long: a process that hangs in the driver does not end."""
    child.kill()
    for pipe in (child.stdout, child.stderr):
        if pipe:
            pipe.close()
    try:
        child.wait(1)
    except subprocess.TimeoutExpired:
        child.returncode = -9  # so that no later wait blocks


def _stage(out: bytes | None) -> str:
    stages = re.findall(rb"^at (.*)$", out or b"", re.MULTILINE)
    return str(stages[-1].decode()) if stages else "startup"


def _why_not_opened(names: Sequence[str], faults: Sequence[str]) -> str:
    """Describe what is missing: the library itself, or one that it needs."""
    others = [fault for fault in faults if not fault.startswith(f"{NAME}") or "cannot open" not in fault]
    if len(names) > 1 and not others:
        return f"{NAME} was not found by ROCM_PATH, in /opt/rocm*, or by the loader"
    return f"{names[0]} cannot be opened: {others[0] if others else faults[0]}"


# ---- which hip-python matches ----------------------------------------------------------------------


def _release(version: Sequence[int]) -> tuple[str, str]:
    """The ROCm releases with a HIP version, and the hip-python that is made for them; "" if too old."""
    found = ("", "")
    for first, release, requirement in _RELEASES:
        if tuple(version[:2]) >= first:
            found = (release, requirement)
    return found


def _require_match(
    library: str, version: Sequence[int], missing: Sequence[str], devices: Sequence[str], bindings: Bindings
) -> None:
    release, requirement = _release(version)
    hip = f"HIP {version[0]}.{version[1]}" if version[0] else "unknown HIP"
    installed = f"hip-python {bindings.version}, made for HIP {bindings.hip[0]}.{bindings.hip[1]}"
    if not release:
        raise UnusableError(f"{library} ({hip}) is too old: hipgemm needs ROCm 6 or newer")
    if version[0] > _RELEASES[-1][0][0]:
        raise UnusableError(
            f"{library} ({hip}) is newer than this version of hipgemm supports: update hipgemm"
        )
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UnusableError(
            f"{library} ({hip}) lacks {missing[0]}{more}, which hipgemm calls through {installed}; "
            f"repair or update ROCm, and run: pip install '{requirement}'"
        )
    if bindings.hip[0] != version[0]:
        raise UnusableError(
            f"{installed}, does not match {library}, {hip} (of {'; '.join(devices)}); "
            f"run: pip install '{requirement}'"
        )


def advice(version: Sequence[int], bindings: Bindings) -> str:
    """Which hip-python to install if the installed one is for other, compatible ROCm releases; else ""."""
    release, requirement = _release(version)
    if release == _release(bindings.hip)[0]:
        return ""
    return (
        f"hip-python {bindings.version} is for {_release(bindings.hip)[0]}, but the library is {release}; "
        f"it has every function that hipgemm calls; for the matching one run: pip install '{requirement}'"
    )
