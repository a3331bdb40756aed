"""The architectures there are kernels for, and the resources of their compute units."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Occupancy(NamedTuple):
    """How much of a kernel a compute unit runs at a time."""

    workgroups_per_cu: float  # where two compute units share LDS: half of what both hold
    waves_per_simd: float  # on average


@dataclass(frozen=True)
class Arch:
    """One architecture. Sources: LLVM's AMDGPUUsage and the ISA documents."""

    mach: int  # its number in an ELF file's flags
    wave: int  # lanes, as the compiler chooses
    vgprs: int  # registers of a SIMD lane, and the granule of their allocation
    vgpr_granule: int
    lds: int  # bytes that the SIMDs below share, and the granule of their allocation
    lds_granule: int
    simds: int
    max_waves: int  # of a SIMD
    compute_units: int = 1  # that have those SIMDs
    # How operands of matrix kernels come into LDS: by "dma" or through "registers". Empty: none.
    matrix: str = ""
    # Whether passes have code of their own for some types, and kernels: HIPGEMM_SPECIAL_PASSES.
    special: bool = False

    def allocated(self, vgpr: int) -> int:
        """Registers allocated to a wave that uses `vgpr`."""
        return max(self.vgpr_granule, _up(vgpr, self.vgpr_granule))

    def occupancy(self, vgpr: int, lds: int, threads: int) -> Occupancy:
        """Occupancy by registers and by LDS: a workgroup fits as a whole or not at all.

        >>> ARCHS["gfx950"].occupancy(vgpr=200, lds=65536, threads=256)
        Occupancy(workgroups_per_cu=2, waves_per_simd=2)
        >>> ARCHS["gfx950"].occupancy(vgpr=176, lds=49152, threads=128)
        Occupancy(workgroups_per_cu=3, waves_per_simd=1.5)
        """
        waves = -(-threads // self.wave)
        slots = min(self.max_waves, self.vgprs // self.allocated(vgpr)) * self.simds
        groups = slots // waves
        if lds:
            groups = min(groups, self.lds // _up(lds, self.lds_granule))
        return Occupancy(_whole(groups / self.compute_units), _whole(groups * waves / self.simds))


def _up(x: int, granule: int) -> int:
    return -(-x // granule) * granule


def _whole(x: float) -> float:
    return int(x) if x == int(x) else x


_KIB = 1024
# RDNA: of a pair of compute units, which share 128 KiB; a workgroup gets at most half.
ARCHS = {
    "gfx950": Arch(0x4F, 64, 512, 8, 160 * _KIB, 1280, simds=4, max_waves=8, matrix="dma", special=True),
    "gfx942": Arch(0x4C, 64, 512, 8, 64 * _KIB, 512, simds=4, max_waves=8, matrix="registers", special=True),
    "gfx90a": Arch(0x3F, 64, 512, 8, 64 * _KIB, 512, simds=4, max_waves=8),
    "gfx1100": Arch(0x41, 32, 1536, 24, 128 * _KIB, 512, simds=4, max_waves=16, compute_units=2),
    "gfx1201": Arch(0x4E, 32, 1536, 24, 128 * _KIB, 512, simds=4, max_waves=16, compute_units=2),
}


DRIVER = Path("/sys/class/kfd/kfd/topology/nodes")  # where amdgpu, the Linux driver, lists its devices


def local_arch(driver: Path = DRIVER) -> str | None:
    """The architecture of this machine's first GPU; None without one."""
    for properties in sorted(driver.glob("*/properties"), key=lambda path: int(path.parent.name)):
        try:
            found = re.search(r"^gfx_target_version (\d+)", properties.read_text(), re.MULTILINE)
        except OSError:  # not ours to use
            continue
        if version := int(found[1]) if found else 0:  # 0: a CPU
            major, minor, step = version // 10000, version // 100 % 100, version % 100
            return f"gfx{major}{minor:x}{step:x}"
    return None
