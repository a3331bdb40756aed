"""The installation: runtime, devices, kernels."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from ..errors import KernelNotFoundError
from ..kernels.manifest import MAKE_LINE, load_manifest, no_kernels
from ..kernels.primitives import COMMAND, failed
from ..runtime import hip as _hip
from ..runtime import rocm as _rocm


@dataclass(frozen=True)
class Info:
    """The installation: runtime, devices and kernels.

    Attributes
    ----------
    runtime : str or None
        ``"rocm"``, ``"emulator"``, ``"bridge"``, or None if there is no runtime.
    library : str
        The HIP library in use.
    version : str
        The HIP version that it reports.
    driver : str
        The version of the GPU driver: of the kernel module, or if that has none, of HIP.
    hip_python : str
        The version of hip-python.
    devices : tuple of str
        The name and architecture of each device.
    kernels : dict
        The kernels built, by architecture.
    problem : str
        The problem that prevents use, if any.
    advice : str
        A recommended change, if any.
    """

    runtime: str | None
    library: str
    version: str
    driver: str
    hip_python: str
    devices: tuple[str, ...]
    kernels: dict[str, tuple[str, ...]]
    problem: str = ""
    advice: str = ""

    @property
    def summary(self) -> str:
        """One line: runtime, devices with their architectures, versions, library; or why there is none.

        >>> devices = ("MI355X, gfx950",) * 8
        >>> Info("rocm", "/opt/rocm/lib/libamdhip64.so", "7.0.51831", "6.14.14", "7.0", devices, {}).summary
        'rocm: 8 x MI355X, gfx950; HIP 7.0.51831; driver 6.14.14; /opt/rocm/lib/libamdhip64.so'
        """
        if self.runtime is None:
            return f"none: {self.problem}"
        devices = [
            name if len(self.devices) == 1 else f"{self.devices.count(name)} x {name}"
            for name in dict.fromkeys(self.devices)
        ]
        parts = [*devices, f"HIP {self.version}", f"driver {self.driver}", self.library]
        return f"{self.runtime}: {'; '.join(parts)}"

    def __repr__(self) -> str:
        return f"Info({self.summary!r})"

    def __str__(self) -> str:
        lines = [f"runtime     {self.runtime or 'none'}  {self.library}".rstrip()]
        if self.runtime:
            lines.append(f"version     HIP {self.version}, driver {self.driver}")
        lines.append(f"hip-python  {self.hip_python or 'not installed'}")
        lines += [f"device {i}    {name}" for i, name in enumerate(self.devices)]
        for arch, names in self.kernels.items():
            lines.append(f"kernels     {arch}: {len(names)}, {', '.join(_kinds(names))}")
        if self.problem:
            lines.append(f"problem     {self.problem}")
        if self.advice:
            lines.append(f"advice      {self.advice}")
        return "\n".join(lines)


def kind(kernel: str) -> str:
    """Name a kernel without layout and tile.

    >>> kind("gemm_bf16_nt_64x64x64")
    'gemm_bf16'
    >>> kind("primitive_lds_dma")
    'primitive'
    """
    if kernel.startswith("primitive_"):
        return "primitive"
    return re.sub(r"(_[nt][nt])?_\d+x\d+x\d+$", "", kernel)


def _kinds(names: tuple[str, ...]) -> list[str]:
    """Group kernel names by kind, with the number of each.

    >>> _kinds(("gemm_bf16_nt_64x64x64", "gemm_bf16_nt_128x128x64", "amax"))
    ['gemm_bf16 (2)', 'amax']
    """
    counts = Counter(map(kind, names))
    return [name if count == 1 else f"{name} ({count})" for name, count in counts.items()]


def _built(manifest: str) -> dict[str, tuple[str, ...]]:
    return {arch: tuple(built.kernels) for arch, built in load_manifest(name=manifest).items()}


def info() -> Info:
    """Return the runtime, devices and kernels in use. Opens the runtime; does not raise if there is none.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.info().runtime in ("rocm", "emulator", "bridge")
    True
    """
    problems: list[str] = []
    from importlib import metadata  # slow to import, and only this function needs it

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
    runtime, library, hip_version, driver, devices, advice = None, "", "", "", [], ""
    try:
        found = _hip.runtime()
        runtime, library = found.kind, found.library
        number = int(_hip.call("hipRuntimeGetVersion"))
        hip_version, driver = _rocm.dotted(number), _hip.driver_version()
        if runtime == "rocm":
            advice = _rocm.advice(_rocm.split_version(number), found.bindings)
        if runtime == "bridge":
            kernels = _built("bridge.json")
        for device in range(found.devices):
            name = _hip.properties(device).name
            text = name.decode() if isinstance(name, bytes) else str(name)
            arch = _hip.arch(device)
            devices.append(f"{text}, {arch}")
            if kernels and arch not in kernels:
                problems.append(f"device {device}: {no_kernels(arch, kernels)}")
            elif wrong := failed(device):
                text = f"kernels that rest on {', '.join(wrong)} are refused; see: {COMMAND}"
                advice = "; ".join(filter(None, (advice, f"device {device}: {text}")))
    # hip-python raises a RuntimeError for a function that the library lacks.
    except (RuntimeError, ValueError) as error:
        problems.append(str(error))
    return Info(
        runtime, library, hip_version, driver, version, tuple(devices), kernels, "; ".join(problems), advice
    )
