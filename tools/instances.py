"""The lists of src_hip as Python: the kernels of instances.def, with the arguments of kargs.hpp."""

from __future__ import annotations

import json
import re
from typing import Any

from archs import Arch
from toolchain import Toolchain

ARGUMENT_SIZES = {"ptr": 8, "i64": 8, "u32": 4, "f32": 4}


def read_rows(tools: Toolchain) -> list[str]:
    """The rows of instances.def, its own macros expanded."""
    names = ("GEMM", "SCALED_GEMM", "GROUPED", "SCALED_GROUPED", "PLAIN", "COPY", "PASS")
    # A macro is not expanded again inside itself.
    kept = "".join(f"#define {name}(...) {name}(__VA_ARGS__)\n" for name in names)
    return re.findall(r"\w+\([^()]*\)", tools.preprocess(f'{kept}#include "instances.def"\n'))


def read_instances(tools: Toolchain) -> list[dict[str, Any]]:
    """The kernels of instances.def with their argument lists."""
    expanded = tools.preprocess(
        """
        #define HIPGEMM_LISTS_ONLY
        #include "kargs.hpp"
        #define ROW(type, name) [#type, #name]
        #define COMMA ,
        #define GEMM(format, layout, M, N, K, waves_m, waves_n, schedule, waves_per_simd, limit) \\
          ["gemm", #format, #layout, M, N, K, waves_m, waves_n, #schedule, waves_per_simd, limit]
        #define SCALED_GEMM(formats, a, b, layout, M, N, K, waves_m, waves_n, schedule, per_simd, limit) \\
          ["scaled_gemm", #formats, #a, #b, #layout, M, N, K, waves_m, waves_n, #schedule, per_simd, limit]
        #define GROUPED(walk, format, layout, M, N, K, waves_m, waves_n, schedule, per_simd, limit) \\
          ["grouped", #walk, #format, #layout, M, N, K, waves_m, waves_n, #schedule, per_simd, limit]
        #define SCALED_GROUPED( \\
          walk, formats, a, b, layout, M, N, K, waves_m, waves_n, schedule, per_simd, limit) \\
          ["scaled_grouped", #walk, #formats, #a, #b, #layout, M, N, K, waves_m, waves_n, \\
           #schedule, per_simd, limit]
        #define PLAIN(M, N, K, threads, waves_per_simd) ["plain", [M, N, K], threads, waves_per_simd]
        #define COPY(bytes, side, threads, waves_per_simd) ["copy", bytes, side, threads, waves_per_simd]
        #define PASS(name, ARGS, Args, threads, waves_per_simd, ...) \\
          ["pass", #name, threads, waves_per_simd, [__VA_ARGS__], [HIPGEMM_##ARGS##_ARGS(ROW, COMMA)]]
        ["gemm_args", HIPGEMM_GEMM_ARGS(ROW, COMMA)]
        ["scaled_gemm_args", HIPGEMM_GEMM_ARGS(ROW, COMMA), HIPGEMM_SCALE_ARGS(ROW, COMMA)]
        ["grouped_args", HIPGEMM_GROUPED_ARGS(ROW, COMMA)]
        ["scaled_grouped_args", HIPGEMM_GROUPED_ARGS(ROW, COMMA), HIPGEMM_GROUPED_SCALE_ARGS(ROW, COMMA)]
        ["plain_args", HIPGEMM_PLAIN_ARGS(ROW, COMMA)]
        ["copy_args", HIPGEMM_COPY_ARGS(ROW, COMMA)]
        """
        + "\n".join(read_rows(tools))
    )
    rows = [json.loads(line) for line in expanded.splitlines() if line.strip()]
    args = {name.removesuffix("_args"): lay_out(pairs) for name, *pairs in rows if name.endswith("_args")}
    kernels: list[dict[str, Any]] = []
    for op, *row in rows:
        if op == "gemm":
            element, *rest = row
            kernels.append(_gemm(op, element, element, element, *rest) | {"args": args[op]})
        elif op == "scaled_gemm":
            kernels.append(_gemm(op, *row) | {"args": args[op]})
        elif op == "grouped":
            walk, element, *rest = row
            kernels.append(_gemm(f"grouped_{walk}", element, element, element, *rest) | {"args": args[op]})
        elif op == "scaled_grouped":
            walk, *rest = row
            kernels.append(_gemm(f"scaled_grouped_{walk}", *rest) | {"args": args[op]})
        elif op == "plain":
            tile, threads, waves = row
            kernels.append(_pass("plain_gemm", op, tile, threads, waves) | {"args": args[op]})
        elif op == "copy":
            size, side, threads, waves = row
            kernel = _pass(f"copy_strided_b{size}", op, [side, side], threads, waves)
            kernels.append(kernel | {"element_bytes": size, "args": args[op]})
        elif op == "pass":
            name, threads, waves, tile, pairs = row
            kernels.append(_pass(name, name, tile, threads, waves) | {"args": lay_out(pairs)})
    return kernels


def _pass(name: str, op: str, tile: list[int], threads: int, waves_per_simd: int) -> dict[str, Any]:
    limits = {"waves_per_simd": waves_per_simd}
    return {"name": name, "op": op, "tile": tile, "threads": threads, "limits": limits}


def _gemm(
    op: str,
    formats: str,
    a: str,
    b: str,
    layout: str,
    m: int,
    n: int,
    k: int,
    waves_m: int,
    waves_n: int,
    schedule: str,
    waves_per_simd: int,
    limit: int,
) -> dict[str, Any]:
    return {
        "name": f"{op.removeprefix('scaled_')}_{formats}_{layout}_{m}x{n}x{k}",
        "op": op,
        "a": a,
        "b": b,
        "layout": layout,
        "tile": [m, n, k],
        "waves": waves_m * waves_n,
        "threads": waves_m * waves_n * 64,
        "schedule": schedule,
        # Numbers of 16 bytes: K comes in whole chunks, and a K tile is 8 of them.
        "chunk": k // 8,
        # Numbers along K with a scale of their own; 0 where a row or all share one.
        "block": 32 if a.startswith("mx") else 0,
        "limits": {"waves_per_simd": waves_per_simd, "valu_salu": limit},
    }


def is_gemm(kernel: dict[str, Any]) -> bool:
    """Whether a kernel has a main loop with matrix instructions."""
    return "schedule" in kernel


def lay_out(pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Offsets of kernel arguments: each aligned to its own size."""
    result: list[dict[str, Any]] = []
    offset = 0
    for kind, name in pairs:
        size = ARGUMENT_SIZES[kind]
        offset = (offset + size - 1) // size * size
        result.append({"name": name, "type": kind, "offset": offset, "size": size})
        offset += size
    return result


def instances_for(tools: Toolchain, arch: Arch) -> tuple[list[str], list[dict[str, Any]]]:
    """The rows of instances.def that an architecture builds, and the kernels they stand for."""
    pairs = zip(read_rows(tools), read_instances(tools), strict=True)
    chosen = [(row, kernel) for row, kernel in pairs if arch.builds(kernel)]
    if not arch.matrix:  # there the compiler weighs registers itself: src_hip/hip_device.hpp
        for _, kernel in chosen:
            del kernel["limits"]
    return [row for row, _ in chosen], [kernel for _, kernel in chosen]
