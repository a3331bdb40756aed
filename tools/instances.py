"""The kernels of src_hip/instances.def, with the arguments that their headers list."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archs import ARCHS, Arch
from tables import (
    Demo,
    FormatTables,
    KernelTables,
    Pair,
    Pass,
    Primitive,
    Product,
    ScaledFormat,
    Serves,
    Tile,
    read_formats,
    read_kernels,
)
from toolchain import BuildError, Toolchain

ARGUMENT_SIZES = {"ptr": 8, "i64": 8, "u32": 4, "f32": 4}
WAVE_LANES = 64  # of the architectures with matrix kernels

Arguments = dict[str, list[dict[str, Any]]]  # by the name of the list


@dataclass(frozen=True)
class Instance:
    """One kernel."""

    kernel: dict[str, Any]  # its entry in the manifest
    row: str  # of kernels.hip
    header: str  # with its function
    unit: str  # the unit that it is compiled in
    architectures: str  # any, those of a kind, or one (tables.py)
    named: tuple[str, str]  # in assembly: how instructions that name its formats begin, and the names
    like: Instance | None  # the kernel whose assembly it takes, but for these
    demo: bool  # whether the examples use it


STAGED_K = 128  # elements of a K tile in 64 KB of LDS, where all have 16 bits, at most


def all_instances(tools: Toolchain, staging: str = "dma") -> list[Instance]:
    """All kernels, as architectures of one kind have them (archs.py)."""
    formats = read_formats()
    listed = read_kernels(formats, staging=staging)
    if staging == "registers":
        k = [str(min(int(pair.k), STAGED_K)) for pair in listed.pairs]
        pairs = [p._replace(k=n) for p, n in zip(listed.pairs, k, strict=True)]
        listed = replace(listed, pairs=pairs)
    args = _read_arguments(tools, listed)
    return [
        *_products(listed, formats, args, staging),
        *(_pass(row, args) for row in listed.passes),
        *(_primitive(row, args) for row in listed.primitives),
    ]


def _read_arguments(tools: Toolchain, listed: KernelTables) -> Arguments:
    """The lists of arguments that rows name, from the headers that they name."""
    rows: list[Product | Pass | Primitive] = [*listed.products, *listed.passes, *listed.primitives]
    headers = "".join(f'#include "{header}"\n' for header in dict.fromkeys(row.header for row in rows))
    names = dict.fromkeys([*(row.args for row in rows), *(row.scaled_args for row in listed.products)])
    lists = "".join(f'["{name}" HIPGEMM_{name}(ROW)]\n' for name in names)
    expanded = tools.preprocess(f"{headers}#define ROW(type, name) , [#type, #name]\n{lists}")
    found = [json.loads(line) for line in expanded.splitlines() if line.startswith('["')]
    return {name: lay_out(pairs) for name, *pairs in found}


def _products(
    listed: KernelTables, formats: FormatTables, args: Arguments, staging: str = "dma"
) -> Iterator[Instance]:
    """Each operation in all pairs it serves, all of its tiles, all layouts; then those listed one by one."""
    pairs = {pair.name: pair for pair in listed.pairs}

    def made(
        product: Product, pair: Pair, tile: Tile, row: Serves, layout: str, mfma_rows: str = ""
    ) -> Instance:
        like = None
        if pair.like and pair.name not in row.families.split():
            like = made(product, pairs[pair.like], tile, row, layout, mfma_rows)
        named = _named_formats(pair, formats, staging)
        return _product(product, pair, tile, row, layout, mfma_rows, formats, args, listed.demo, like, named)

    for product in listed.products:
        for pair in listed.pairs:
            serves = listed.serving(product.operation, pair.name)
            for size in listed.tiles:
                for row, layout in serves:
                    if size in (row.tiles or product.tiles).split():
                        yield made(product, pair, listed.tiles[size], row, layout)
    for single in listed.kernels:
        (product,) = [row for row in listed.products if row.operation == single.operation]
        serves = listed.serving(single.operation, single.pair)
        (row,) = [row for row, layout in serves if layout == single.layout]
        yield made(product, pairs[single.pair], single.tile, row, single.layout, single.mfma_rows)


# Families that are compiled with another one, since every unit compiles the functions that its kernels
# call. None of the demo with another one: it builds whole units.
TOGETHER = {"mxfp4": "mxfp8", "mxfp6": "mixed", "weight_block": "block"}


def _product(
    product: Product,
    pair: Pair,
    tile: Tile,
    serves: Serves,
    layout: str,
    mfma_rows: str,
    formats: FormatTables,
    args: Arguments,
    demo: Demo,
    like: Instance | None,
    named: tuple[str, str],
) -> Instance:
    form = formats.formats[pair.b]
    block = int(form.block) if isinstance(form, ScaledFormat) else None
    operation, scaled = product.operation, block is not None
    listed = product.scaled_args if scaled else product.args
    size, waves = (*_numbers(tile.size), int(pair.k)), int(tile.waves_m) * int(tile.waves_n)
    bits = {formats.formats[x].bits for x in (pair.a, pair.b)}
    if bits == {"6"} and tile.six_bits:
        tile = tile._replace(schedule=tile.six_bits)
    limit = serves.ring_limit if tile.is_ring else serves.limit
    in_demo = pair.family in demo.families.split() and tile.size in demo.tiles.split()
    family = TOGETHER.get(pair.family, pair.family)
    unit = f"{Path(product.header).stem}_{family}{'_demo' if in_demo else ''}"
    name = f"{operation}_{pair.name}_{layout}_{tile.size}x{pair.k}{f'_mfma{mfma_rows}' if mfma_rows else ''}"
    rows = tile.small_rows if scaled and bits <= {"4", "6"} else "16"
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
        # Rows of a matrix instruction, and its columns.
        "mfma_rows": int(rows),
        # One of two for the same products is used by name only.
        "by_name": bool(mfma_rows),
        # Elements along K that share a scale; 0 where a row or all share one.
        "block": block or 0,
        "limits": {"waves_per_simd": int(tile.waves_per_simd), "valu_salu": int(limit)},
        "args": args[listed],
    }
    fields = (name, operation, listed, pair.a, pair.b, rows, layout, *size, *tile[1:5])
    row = _row("PRODUCT_KERNEL", *fields)
    return Instance(
        kernel=kernel,
        row=row,
        header=product.header,
        unit=unit,
        architectures="matrix",
        demo=in_demo,
        named=named,
        like=like,
    )


WIDENED = {"E4m3": "fp8", "E5m2": "bf8", "E2m3": "fp6", "E3m2": "bf6", "E2m1": "fp4"}  # in assembly


def _named_formats(pair: Pair, formats: FormatTables, staging: str) -> tuple[str, str]:
    """How instructions begin that name the formats of a pair, and how they name these.

    Matrix instructions of scaled formats, in which b comes first (src_hip/gemm/mfma.hpp), or of others; if
    only b is scaled, the instructions that widen it.
    """
    a, b = (formats.formats[name] for name in (pair.a, pair.b))
    if staging == "registers" and isinstance(b, ScaledFormat):
        first, second = (
            int(formats.elements[f.element].code) if isinstance(f, ScaledFormat) else 0 for f in (a, b)
        )
        both = first | second << 8
        return "/*elements*/", f", {both if both <= 64 else hex(both)}"  # as assembly has it
    if not isinstance(b, ScaledFormat):
        return "v_mfma_", f"x{16 if staging == 'registers' else 32}_{b.name} "
    if not isinstance(a, ScaledFormat):
        return "v_cvt_scalef32_pk", f"_bf16_{WIDENED[b.element]} "
    codes = zip(("cbsz", "blgp"), (formats.elements[f.element].code for f in (b, a)), strict=True)
    return "v_mfma_", "".join(f" {field}:{code}" for field, code in codes if code != "0")


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
    return Instance(
        kernel=kernel,
        row=_row("PASS_KERNEL", *fields),
        header=row.header,
        unit=row.operation,
        architectures=row.architectures,
        demo=True,
        named=("", ""),
        like=None,
    )


def _primitive(row: Primitive, args: Arguments) -> Instance:
    name = f"primitive_{row.name}"
    return Instance(
        kernel={
            "name": name,
            "op": "primitive",
            "tile": [1, 1],
            "threads": int(row.threads),
            "limits": {},
            "args": args[row.args],
        },
        row=_row("PRIMITIVE_KERNEL", name, row.args, row.threads),
        header=row.header,
        unit="primitives",
        architectures=row.architectures,
        demo=True,
        named=("", ""),
        like=None,
    )


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
        if kind not in ARGUMENT_SIZES:
            raise BuildError(f"argument {name}: its type must be {', '.join(ARGUMENT_SIZES)}; got {kind}")
        size = ARGUMENT_SIZES[kind]
        offset = (offset + size - 1) // size * size
        result.append({"name": name, "type": kind, "offset": offset, "size": size})
        offset += size
    return result


def instances_for(tools: Toolchain, arch: Arch) -> list[Instance]:
    """The kernels that an architecture builds."""
    kinds = {"any": True, "matrix": bool(arch.matrix), "special": arch.special}
    kinds |= {name: arch is known for name, known in ARCHS.items()}
    chosen = [found for found in all_instances(tools, arch.matrix) if kinds[found.architectures]]
    if arch.matrix != "dma":  # there the compiler decides on registers: src_hip/common/hip_device.hpp
        for instance in chosen:
            if not is_gemm(instance.kernel):
                del instance.kernel["limits"]
    return chosen


def unit_source(instances: Iterable[Instance]) -> str:
    """What kernels.hip includes, for these kernels."""
    instances = list(instances)
    headers = dict.fromkeys(f'#include "{instance.header}"' for instance in instances)
    return "\n".join([*headers, *(instance.row for instance in instances), ""])
