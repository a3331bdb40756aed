"""What is here: runtime, devices, kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import HipError, KernelNotFoundError, RuntimeNotFoundError
from ..kernels.manifest import MAKE_LINE, load_manifest, no_kernels
from ..runtime import hip as _hip


@dataclass(frozen=True)
class Info:
    """What `info` found.

    Attributes
    ----------
    runtime : str or None
        ``"rocm"``, ``"emulator"``, or None where there is none.
    library : str
        The HIP library in use.
    hip_python : str
        The version of hip-python.
    devices : tuple of str
        Each device's name and architecture.
    kernels : dict
        The kernels built, by architecture.
    problem : str
        What is wrong, if anything.
    """

    runtime: str | None
    library: str
    hip_python: str
    devices: tuple[str, ...]
    kernels: dict[str, tuple[str, ...]]
    problem: str = ""

    def __str__(self) -> str:
        lines = [f"runtime     {self.runtime or 'none'}  {self.library}".rstrip()]
        lines.append(f"hip-python  {self.hip_python or 'not installed'}")
        lines += [f"device {i}    {name}" for i, name in enumerate(self.devices)]
        for arch, names in self.kernels.items():
            lines.append(f"kernels     {arch}: {len(names)}, {', '.join(_kinds(names))}")
        if self.problem:
            lines.append(f"problem     {self.problem}")
        return "\n".join(lines)


def _kinds(names: tuple[str, ...]) -> list[str]:
    """Name kernels up to their tile: formats and layout, with how many there are of each.

    >>> _kinds(("gemm_bf16_nt_64x64x64", "gemm_bf16_nt_128x128x64", "amax"))
    ['gemm_bf16 (2)', 'amax']
    """
    counts: dict[str, int] = {}
    for name in names:
        kind = re.sub(r"(_[nt][nt])?_\d+x\d+x\d+$", "", name)
        counts[kind] = counts.get(kind, 0) + 1
    return [kind if count == 1 else f"{kind} ({count})" for kind, count in counts.items()]


def _built(manifest: str) -> dict[str, tuple[str, ...]]:
    return {arch: tuple(built.kernels) for arch, built in load_manifest(name=manifest).items()}


def info() -> Info:
    """Tell which runtime, devices and kernels are in use. Opens the runtime; never raises for want of one.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.info().runtime in ("rocm", "emulator")
    True
    """
    from importlib import metadata  # slow to import, and only this function needs it

    problems: list[str] = []
    try:
        version = metadata.version("hip-python")
    except metadata.PackageNotFoundError:
        version = ""
    kernels: dict[str, tuple[str, ...]] = {}
    try:
        kernels = _built("manifest.json")
    except KernelNotFoundError as error:
        problems.append(str(error))
    if not kernels:
        problems.append(f"no kernels are built; run: {MAKE_LINE}")
    runtime, library, devices = None, "", []
    try:
        found = _hip.runtime()
        runtime, library = found.kind, found.library
        if runtime == "bridge":
            kernels = _built("bridge.json")
        for device in range(found.devices):
            name = _hip.properties(device).name
            text = name.decode() if isinstance(name, bytes) else str(name)
            arch = _hip.arch(device)
            devices.append(f"{text}, {arch}")
            if kernels and arch not in kernels:
                problems.append(f"device {device}: {no_kernels(arch, kernels)}")
    except (RuntimeNotFoundError, HipError, ValueError) as error:
        problems.append(str(error))
    return Info(runtime, library, version, tuple(devices), kernels, "; ".join(problems))
