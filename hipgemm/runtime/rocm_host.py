"""Why a host with ROCm may have no device for this process: variables, device files, permissions."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from ..config import variable

VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")  # of Docker and Podman


def why_no_device(root: Path = Path("/")) -> str:
    """Each cause that can be seen, as sentences; `root` has the device files and those of the system."""
    return "; ".join(_causes(root))


def _causes(root: Path) -> Iterator[str]:
    contained = any((root / name).exists() for name in _CONTAINER_FILES) or bool(
        variable("KUBERNETES_SERVICE_HOST")
    )
    gpus = _gpus(root)
    for name in VISIBLE:
        if (value := variable(name)) is not None and (why := _hidden(value, gpus)):
            yield f"{name}={value} hides every GPU, {why}: unset or correct it"
    kfd, nodes = root / "dev/kfd", sorted((root / "dev/dri").glob("renderD*"))
    if not kfd.exists():
        advice = "the kernel module amdgpu is not loaded; see sudo modprobe amdgpu and dmesg"
        if contained:
            advice = "the container was started without --device /dev/kfd --device /dev/dri"
        yield f"there is no /dev/kfd: {advice}"
    elif not _opens(kfd):
        yield _refused(kfd, "/dev/kfd", contained)
    if not nodes and kfd.exists():
        advice = "the kernel module amdgpu found no GPU; see dmesg"
        if contained:
            advice = "the container was started without --device /dev/dri"
        yield f"there is no /dev/dri/renderD*: {advice}"
    elif nodes and not any(map(_opens, nodes)):
        yield _refused(nodes[0], f"/dev/dri/{nodes[0].name}", contained)


def _gpus(root: Path) -> int:
    """How many the driver has; 0 if that is not known."""
    found = 0
    for file in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id"):
        try:
            found += file.read_text().strip() not in ("", "0")  # 0 is a CPU
        except OSError:
            return 0
    return found


def _hidden(value: str, gpus: int) -> str:
    """Why a variable hides all devices; "" if it does not, or that is not known."""
    first = value.split(",")[0].strip()  # what follows an invalid one is ignored
    if not first:
        return "since it is empty"
    if first.isdecimal():
        if gpus and int(first) >= gpus:
            return f"since the driver has {gpus}, numbered from 0"
        return ""
    return "" if first.upper().startswith("GPU-") else f"since {first} is no device"


def _opens(file: Path) -> bool:
    return os.access(file, os.R_OK | os.W_OK)


def _refused(file: Path, name: str, contained: bool) -> str:
    """Which group may open a device file, and how to join it."""
    number = file.stat().st_gid
    try:
        group = grp.getgrgid(number)
    except KeyError:
        group = None
    called = group.gr_name if group else f"number {number}"
    text = f"this user (uid {os.getuid()}) may not open {name}, which group {called} may"
    if contained:
        return f"{text}: start the container with --group-add {number}"
    if number == 0 or group is None:
        return f"{text}: ROCm's udev rules (70-amdgpu.rules) give it to group render or video"
    if _user() in group.gr_mem and number not in os.getgroups():
        return f"{text}; it is in that group since after the login: log in again"
    return f'{text}: sudo usermod -aG {called} "$USER", and log in again'


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
