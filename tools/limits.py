"""Limits of kernels and code objects: a build that breaks one fails."""

from __future__ import annotations

from typing import Any

from archs import Arch
from instances import is_gemm

MAX_BYTES = 10 * 2**20  # of a code object


def faults(kernel: dict[str, Any], arch: Arch) -> list[str]:
    """Every limit the kernel breaks."""
    name, vgpr, allocated = kernel["name"], kernel["vgpr"], kernel["vgpr_allocated"]
    found = [
        f"{name}: {what} {kernel[key]}, must be 0"
        for key, what in (
            ("vgpr_spills", "VGPR spills"),
            ("sgpr_spills", "SGPR spills"),
            ("scratch", "scratch bytes"),
        )
        if kernel[key]
    ]
    possible = arch.occupancy(vgpr, kernel["lds"], kernel["threads"]).workgroups_per_cu
    if kernel["workgroups_per_cu"] < possible:
        found.append(
            f"{name}: {kernel['workgroups_per_cu']} workgroups per CU, since {allocated} VGPR are allocated; "
            f"the {vgpr} in use and {kernel['lds']} bytes of LDS leave room for {possible}"
        )
    limits = kernel.get("limits", {})
    if kernel["waves_per_simd"] < limits.get("waves_per_simd", 0):
        found.append(
            f"{name}: {kernel['waves_per_simd']} waves per SIMD ({allocated} VGPR allocated, "
            f"{kernel['lds']} bytes of LDS), must be at least {limits['waves_per_simd']}"
        )
    if is_gemm(kernel):
        loop = kernel["main_loop"]
        if loop["valu"] + loop["salu"] > limits["valu_salu"]:
            found.append(
                f"{name}: {loop['valu']} VALU + {loop['salu']} SALU per K tile in the main loop, "
                f"must be at most {limits['valu_salu']}"
            )
    return found


def file_faults(name: str, content: bytes) -> list[str]:
    """Every limit that a code object breaks."""
    if len(content) <= MAX_BYTES:
        return []
    return [f"{name}: {len(content)} bytes, must be at most {MAX_BYTES}"]
