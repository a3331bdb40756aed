"""ROCm's library: where it is looked for, what it reports in a child process, which hip-python fits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import variable

NAME = "libamdhip64.so"
MAJORS = (7, 6)  # of the library's soname, newest first
OPT = Path("/opt")
SECONDS = 60.0  # for a try in a child process; a host of eight GPUs takes a few

# What hipgemm calls, by the names that hip-python looks up in the library.
FUNCTIONS = (
    "hipDeviceCanAccessPeer",
    "hipDeviceEnablePeerAccess",
    "hipDeviceSynchronize",
    "hipDriverGetVersion",
    "hipEventCreateWithFlags",
    "hipEventDestroy",
    "hipEventElapsedTime",
    "hipEventQuery",
    "hipEventRecord",
    "hipEventSynchronize",
    "hipFree",
    "hipGetDevice",
    "hipGetDeviceCount",
    "hipGetDevicePropertiesR0600",
    "hipGetLastError",
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
    "hipPointerGetAttributes",
    "hipRuntimeGetVersion",
    "hipSetDevice",
    "hipStreamCreateWithFlags",
    "hipStreamGetDevice",
    "hipStreamGetFlags",
    "hipStreamQuery",
    "hipStreamSynchronize",
    "hipStreamWaitEvent",
)

# The first HIP version of each line of ROCm releases, and the hip-python that is made for it.
_LINES = (
    ((6, 0), "ROCm 6", "hip-python>=6.4,<7"),
    ((7, 0), "ROCm 7.0 to 7.2", "hip-python>=7.0,<8"),
    ((7, 9), "ROCm 7.9 and newer", "hip-python>=10,<11"),  # ROCm 10.0 has HIP 7.15
)


class UnusableError(Exception):
    """Why ROCm cannot serve this process, in one sentence."""


@dataclass(frozen=True)
class Bindings:
    """The installed hip-python: its version, and the HIP version whose headers it was made from."""

    version: str
    hip: tuple[int, int]


def split_version(number: int) -> tuple[int, int, int]:
    """Read a HIP version as the library reports it.

    >>> split_version(70051831)
    (7, 0, 51831)
    """
    return number // 10_000_000, number // 100_000 % 100, number % 100_000


# ---- search ------------------------------------------------------------------------------------------


def candidates() -> list[str]:
    """Return the library to take, or the names to ask the loader for, one after the other.

    In this order: the tree that ROCM_PATH names, or else ROCM_HOME, and no other if one of them is set;
    ROCm's Python packages (rocm_sdk); /opt/rocm and /opt/rocm/core; of /opt/rocm-* and /opt/rocm/core-* the
    newest; the loader's path. In a tree, libamdhip64.so comes before .so.7, and that before .so.6.
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
    """The library in a tree of ROCm's: the one that the development package links, else the newest."""
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
        if versioned:  # the newest soname, rather than the file that it links
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


# ---- a try in a child process ------------------------------------------------------------------------

# Prints what it is about to do, since a driver may hang or crash, and at the end what it found.
_TRY = r"""
import ctypes, json, re, sys
names, functions = json.loads(sys.argv[1])
def tell(word, what):
    print("\n" + word, what, flush=True)
lib, faults = None, []
for name in names:
    tell("at", "dlopen")
    try:
        lib = ctypes.CDLL(name)
        break
    except OSError as error:
        faults.append(str(error))
found = {"faults": faults, "opened": lib is not None}
if lib is not None:
    mapped = re.findall(r"\s(/[^\n]*libamdhip64[^/\n]*\.so[^/\n]*)$", open("/proc/self/maps").read(), re.M)
    found["library"] = name if "/" in name or not mapped else mapped[0]
    found["emulated"] = any(hasattr(lib, f"hipgemm_{kind}_last_report") for kind in ("emulator", "bridge"))
    found["lacks"] = [function for function in functions if not hasattr(lib, function)]
    def ask(function, *arguments):
        tell("at", function)
        return getattr(lib, function)(*arguments)
    number = ctypes.c_int(0)
    if hasattr(lib, "hipRuntimeGetVersion"):
        ask("hipRuntimeGetVersion", ctypes.byref(number))
    found["version"], number.value = number.value, 0
    found["error"] = -1
    if hasattr(lib, "hipGetDeviceCount"):
        found["error"] = ask("hipGetDeviceCount", ctypes.byref(number))
    found["devices"] = [""] * number.value
    for device in range(number.value if not found["lacks"] else 0):
        buffer = ctypes.create_string_buffer(1 << 14)  # the struct has 1472 bytes, and begins with the name
        if ask("hipGetDevicePropertiesR0600", buffer, device) == 0:
            arch = re.search(rb"gfx[0-9a-f]+", buffer.raw[256:])
            texts = [buffer.value, arch.group() if arch else b"?"]
            found["devices"][device] = ", ".join(text.decode(errors="replace") for text in texts)
tell("found", json.dumps(found))
"""


def attempt(names: Sequence[str], bindings: Bindings) -> str:
    """Open the first of these libraries that opens, in a child process; return its path.

    In a child, since a process that has opened one cannot change to another, and drivers hang or crash.

    Raises
    ------
    UnusableError
        If it cannot be opened, hangs or crashes, has no device, or does not go with hip-python.
    """
    if not sys.executable:
        raise UnusableError(f"{names[0]} cannot be tried without a Python executable")
    command = [sys.executable, "-I", "-S", "-c", _TRY, json.dumps([names, FUNCTIONS])]
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise UnusableError(f"trying {names[0]} failed ({error})") from error
    try:
        out, errors = child.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired as late:
        _abandon(child)
        raise UnusableError(
            f"the driver hangs: {names[0]}, {_stage(late.stdout)} has not returned within {SECONDS:g} s; "
            "see dmesg for amdgpu, and try rocminfo"
        ) from late
    last = re.search(rb"^found (.*)$", out, re.MULTILINE)
    if last is None:
        detail = errors.decode(errors="replace").strip().splitlines()
        said = f" ({detail[-1]})" if detail else ""
        raise UnusableError(f"trying {names[0]} ended with {child.returncode} in {_stage(out)}{said}")
    found = json.loads(last[1])
    if not found["opened"]:
        raise UnusableError(_why_not_opened(names, found["faults"]))
    library, version = str(found["library"]), split_version(found["version"])
    devices = tuple(map(str, found["devices"]))
    if found["emulated"]:
        raise UnusableError(f"{library} is an emulator")
    usable = found["error"] == 0 and devices
    if usable or found["lacks"]:
        _require_match(library, version, found["lacks"], devices, bindings)
    if not usable:
        raise UnusableError(f"{library} reports no device (error {found['error']}){_why_no_device()}")
    return library


def _abandon(child: subprocess.Popen[bytes]) -> None:
    """Kill a child, but do not wait for one that the driver holds: it would not end."""
    child.kill()
    for pipe in (child.stdout, child.stderr):
        if pipe:
            pipe.close()
    try:
        child.wait(1)
    except subprocess.TimeoutExpired:
        child.returncode = -9  # nobody is to wait for it later


def _stage(out: bytes | None) -> str:
    stages = re.findall(rb"^at (.*)$", out or b"", re.MULTILINE)
    return str(stages[-1].decode()) if stages else "the start"


def _why_not_opened(names: Sequence[str], faults: Sequence[str]) -> str:
    """Tell what is missing: the library itself, or one that it needs."""
    others = [fault for fault in faults if not fault.startswith(f"{NAME}") or "cannot open" not in fault]
    if len(names) > 1 and not others:
        return f"no {NAME} is found: neither by ROCM_PATH, nor in /opt/rocm*, nor by the loader"
    return f"{names[0]} cannot be opened: {others[0] if others else faults[0]}"


def _why_no_device() -> str:
    """What is often the reason."""
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if (value := variable(name)) is not None:
            return f"; {name}={value}"
    kfd = "/dev/kfd"
    if not os.path.exists(kfd):
        return f"; there is no {kfd}: amdgpu is not loaded, or the container was started without it"
    if not os.access(kfd, os.R_OK | os.W_OK):
        return f"; this user may not open {kfd}: add it to the group that owns it (render or video)"
    return ""


# ---- which hip-python goes with it -------------------------------------------------------------------


def _line(version: Sequence[int]) -> tuple[str, str]:
    """The ROCm releases with a version of HIP, and the hip-python that is made for them; "" if too old."""
    found = ("", "")
    for first, line, requirement in _LINES:
        if tuple(version[:2]) >= first:
            found = (line, requirement)
    return found


def _require_match(
    library: str, version: Sequence[int], lacks: Sequence[str], devices: Sequence[str], bindings: Bindings
) -> None:
    line, requirement = _line(version)
    hip = f"HIP {version[0]}.{version[1]}" if version[0] else "unknown HIP"
    made = f"hip-python {bindings.version}, made for HIP {bindings.hip[0]}.{bindings.hip[1]}"
    if not line:
        raise UnusableError(f"{library} ({hip}) is too old: hipgemm needs ROCm 6 or newer")
    if version[0] > _LINES[-1][0][0]:
        raise UnusableError(
            f"{library} ({hip}) is newer than every hip-python that hipgemm knows: update hipgemm"
        )
    if lacks:
        more = f" and {len(lacks) - 1} more" if len(lacks) > 1 else ""
        raise UnusableError(
            f"{library} ({hip}) lacks {lacks[0]}{more}, which hipgemm calls by {made}; "
            f"repair or update ROCm, and run: pip install '{requirement}'"
        )
    if bindings.hip[0] != version[0]:
        raise UnusableError(
            f"{made}, does not go with {library}, {hip} (of {'; '.join(devices)}); "
            f"run: pip install '{requirement}'"
        )


def advice(version: Sequence[int], bindings: Bindings) -> str:
    """What to install where hip-python is made for other ROCm releases, if with a compatible HIP; else ""."""
    line, requirement = _line(version)
    if line == _line(bindings.hip)[0]:
        return ""
    return (
        f"hip-python {bindings.version} is made for {_line(bindings.hip)[0]}, the library is of {line}; "
        f"it has every function that hipgemm calls; for the one made for it run: pip install '{requirement}'"
    )
