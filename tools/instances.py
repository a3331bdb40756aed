"""The kernels of src_hip/instances.def, with the arguments of kargs.hpp."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from archs import Arch
from tables import (
    FormatTables,
    KernelTables,
    Pair,
    Pass,
    Product,
    ScaledFormat,
    Serves,
    Tile,
    read_formats,
    read_kernels,
)
from toolchain import Toolchain

ARGUMENT_SIZES = {"ptr": 8, "i64": 8, "u32": 4, "f32": 4}
WAVE_LANES = 64  # of the architectures with matrix kernels

Arguments = dict[str, list[dict[str, Any]]]  # by the name of the list


@dataclass(frozen=True)
class Instance:
    """One kernel."""

    kernel: dict[str, Any]  # its entry in the manifest
    row: str  # of kernels.hip
    header: str  # with its function
    unit: str  # what it is compiled together with
    portable: bool  # to any architecture
    demo: bool  # whether the examples use it


def all_instances(tools: Toolchain) -> list[Instance]:
    """All there are."""
    formats = read_formats()
    listed = read_kernels(formats)
    lists = [name for p in listed.products for name in (p.args, p.scaled_args)]
    args = _read_arguments(tools, [*lists, *(row.args for row in listed.passes)])
    return [*_products(listed, formats, args), *(_pass(row, args) for row in listed.passes)]


def _read_arguments(tools: Toolchain, names: Iterable[str]) -> Arguments:
    lists = "".join(f'["{name}" HIPGEMM_{name}(ROW)]\n' for name in dict.fromkeys(names))
    expanded = tools.preprocess(
        '#define HIPGEMM_LISTS_ONLY\n#include "common/kargs.hpp"\n'
        f"#define ROW(type, name) , [#type, #name]\n{lists}"
    )
    rows = [json.loads(line) for line in expanded.splitlines() if line.strip()]
    return {name: lay_out(pairs) for name, *pairs in rows}


def _products(listed: KernelTables, formats: FormatTables, args: Arguments) -> Iterator[Instance]:
    """Each operation in all pairs it serves, all of its tiles, all layouts; then those listed one by one."""
    for product in listed.products:
        for pair in listed.pairs:
            serves = listed.serving(product.operation, pair.name)
            for size in product.tiles.split():
                for row, layout in serves:
                    yield _product(product, pair, listed.tiles[size], row, layout, formats, args, listed.demo)
    for single in listed.kernels:
        (product,) = [row for row in listed.products if row.operation == single.operation]
        (pair,) = [row for row in listed.pairs if row.name == single.pair]
        serves = listed.serving(single.operation, single.pair)
        (row,) = [row for row, layout in serves if layout == single.layout]
        yield _product(product, pair, single.tile, row, single.layout, formats, args, listed.demo)


def _product(
    product: Product,
    pair: Pair,
    tile: Tile,
    serves: Serves,
    layout: str,
    formats: FormatTables,
    args: Arguments,
    demo: Iterable[str],
) -> Instance:
    form = formats.formats[pair.a]
    block = int(form.block) if isinstance(form, ScaledFormat) else None
    operation, scaled = product.operation, block is not None
    listed = product.scaled_args if scaled else product.args
    size, waves = (*_numbers(tile.size), int(pair.k)), int(tile.waves_m) * int(tile.waves_n)
    limit = serves.ring_limit if tile.is_ring else serves.limit
    unit = f"{operation}_{pair.name}_{layout}"
    name = f"{unit}_{tile.size}x{pair.k}"
    kernel = {
        "name": name,
        "op": f"scaled_{operation}" if scaled else operation,
        "a": pair.a,
        "b": pair.b,
        "layout": layout,
        "tile": [*size],
        "waves": waves,
        "threads": waves * WAVE_LANES,
        "schedule": tile.schedule,
        # Numbers of 16 bytes: K comes in whole chunks, and a K tile is 8 of them.
        "chunk": int(pair.k) // 8,
        # Numbers along K with a scale of their own; 0 where a row or all share one.
        "block": block or 0,
        "limits": {"waves_per_simd": int(tile.waves_per_simd), "valu_salu": int(limit)},
        "args": args[listed],
    }
    fields = (name, operation, listed, pair.a, pair.b, layout, *size, *tile[1:])
    row = _row("PRODUCT_KERNEL", *fields)
    return Instance(kernel, row, product.header, unit, portable=False, demo=pair.name in demo)


def _pass(row: Pass, args: Arguments) -> Instance:
    tile = _numbers(row.tile)
    kernel: dict[str, Any] = {
        "name": row.name,
        "op": row.operation,
        "tile": tile,
        "threads": int(row.threads),
        "limits": {"waves_per_simd": int(row.waves_per_simd)},
    }
    more = _numbers(row.element_bytes) if row.element_bytes else []
    if more:
        kernel["element_bytes"] = more[0]
    kernel["args"] = args[row.args]
    fields = (row.name, row.operation, row.args, row.threads, row.waves_per_simd, *tile, *more)
    portable = row.architectures == "any"
    return Instance(kernel, _row("PASS_KERNEL", *fields), row.header, row.operation, portable, demo=True)


def _numbers(size: str) -> list[int]:
    """Read a size.

    >>> _numbers("256x64")
    [256, 64]
    """
    return [int(number) for number in size.split("x")]


def _row(kind: str, *fields: object) -> str:
    return f"{kind}({', '.join(map(str, fields))})"


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


def instances_for(tools: Toolchain, arch: Arch) -> list[Instance]:
    """The kernels that an architecture builds."""
    chosen = [found for found in all_instances(tools) if arch.matrix or found.portable]
    if not arch.matrix:  # there the compiler weighs registers itself: src_hip/common/hip_device.hpp
        for instance in chosen:
            del instance.kernel["limits"]
    return chosen


def unit_source(instances: Iterable[Instance]) -> str:
    """What kernels.hip includes, for these kernels."""
    instances = list(instances)
    headers = dict.fromkeys(f'#include "{instance.header}"' for instance in instances)
    return "\n".join([*headers, *(instance.row for instance in instances), ""])
