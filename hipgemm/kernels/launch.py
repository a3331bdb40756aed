"""Kernels of a device, their arguments by name, and launches.

The manifest describes the arguments of each kernel, and the enumeration of formats and scale rules.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..errors import KernelNotFoundError, UnsupportedError, requirement
from ..formats.elements import Format
from ..runtime import hip, tally
from ..runtime.ownership import Owner, Registry, once
from ..runtime.tally import Call
from .manifest import MAKE_LINE, Argument, CodeObject, Codes, Kernel, code_object
from .primitives import refusal
from .scale_layout import gemm_scale_bytes, gemm_scale_step, mn_scale_step

Value = float | Format | str  # of an argument; a str is a scale rule, an activation or a GLU

# The scale arguments of a product without scales.
NO_SCALES: dict[str, Value] = {
    f"{side}_scale{what}": 0 for side in "ab" for what in ("", "_step", "_outer", "_inner")
}

# The arguments of the stages that follow a product: addresses, and the others. All are 0 if there are none.
STAGE_POINTERS = ("aux", "residual", "out_scale", "out_amax", "next_amax")
NO_STAGES: dict[str, Value] = dict.fromkeys(
    (
        *STAGE_POINTERS,
        *("ldaux", "aux_outer", "aux_inner", "ldresidual", "residual_outer", "residual_inner", "out_pitch"),
        *("out_scale_row", "out_scale_block", "out_scale_outer", "out_scale_inner", "staged"),
        *("activation", "glu", "aux_type", "residual_type", "accumulate", "scale_rule", "eps"),
    ),
    0,
)

# The arguments with which those of a product begin.
POINTERS = ("a", "b", "c", "alpha_ptr", "col_scale", "bias")

_CODES = {"ptr": "Q", "i64": "q", "u32": "I", "f32": "f"}
_MAX_ARGUMENT_BYTES = 4096
_MAX_EXTENT, _MAX_THREADS = 2**31, 2**32 - 1  # of 32-bit indices in kernels, and of a HIP launch


def pack_format(args: Sequence[Argument]) -> str:
    """Return the `struct` format that puts each argument at its offset.

    >>> pack_format((Argument("m", "u32", 0, 4), Argument("c", "ptr", 8, 8)))
    '<I4xQ'
    """
    text, at = "<", 0
    for argument in args:
        if argument.type not in _CODES or argument.offset < at:
            raise KernelNotFoundError(f"cannot pack {argument}; run: {MAKE_LINE}")
        gap = argument.offset - at
        text += (f"{gap}x" if gap else "") + _CODES[argument.type]
        at = argument.offset + argument.size
    return text


@dataclass
class Function:
    """A kernel on a device, ready to launch."""

    name: str
    handle: Any
    threads: int
    tile: tuple[int, ...]
    args: tuple[Argument, ...] = field(repr=False)
    packer: struct.Struct = field(repr=False)
    codes: Codes = field(repr=False)

    def pack(self, values: Mapping[str, Value]) -> bytes:
        """Pack arguments by name; they must be exactly those in the manifest."""
        try:
            given = [values[x.name] for x in self.args]
        except KeyError as error:
            raise self._mismatch(f"{error} is not given") from None
        if len(values) != len(given):
            unknown = sorted(set(values) - {x.name for x in self.args})
            raise self._mismatch(f"{', '.join(unknown)} unknown to it")
        return self.packer.pack(*map(self._number, given))

    def _number(self, value: Value) -> float:
        if isinstance(value, Format):
            return self.codes.formats[value.name]
        return self.codes.of(value) if isinstance(value, str) else value

    def _mismatch(self, what: str) -> KernelNotFoundError:
        return KernelNotFoundError(
            f"{self.name} was built for another version of hipgemm, with other arguments ({what}); "
            f"run: {MAKE_LINE}"
        )


class ArgumentBlock:
    """An argument buffer with its HIP_LAUNCH_PARAM list. HIP copies it at the launch."""

    def __init__(self, size: int = _MAX_ARGUMENT_BYTES) -> None:
        self.buffer = (ctypes.c_char * size)()
        self.size = ctypes.c_size_t(size)
        pointer, length, end = 1, 2, 3  # HIP_LAUNCH_PARAM_*
        self.config = (ctypes.c_void_p * 5)(
            pointer, ctypes.addressof(self.buffer), length, ctypes.addressof(self.size), end
        )
        self.extra = hip.launch_extra(ctypes.addressof(self.config))

    @classmethod
    def copy_of(cls, extra: Any) -> ArgumentBlock:
        """Copy the arguments of a launch that are passed as `extra`."""
        _, source, _, size, _ = (ctypes.c_size_t * 5).from_address(int(extra))
        made = cls(ctypes.c_size_t.from_address(size).value)
        ctypes.memmove(made.buffer, source, len(made.buffer))
        return made


class BoundLaunch:
    """A launch that is repeated with other addresses. All other arguments are packed once.

    Each launch in progress has its own argument block, in any thread, signal handler or finalizer. Blocks are
    reused.
    """

    __slots__ = (
        "_first",
        "_free",
        "_handle",
        "_others",
        "_product",
        "_template",
        "_threads",
        "_workgroups",
        "name",
    )

    def __init__(
        self, kernel: Function, workgroups: int, varying: Sequence[str], fixed: Mapping[str, Value]
    ) -> None:
        """Bind all arguments except the `varying` ones."""
        self.name, self._handle, self._threads = kernel.name, kernel.handle, kernel.threads
        self._workgroups = workgroups
        self._template = kernel.pack({**fixed, **dict.fromkeys(varying, 0)})
        self._free: list[ArgumentBlock] = []
        # Those with which the kernel's arguments begin are packed together.
        apart = (i for i, name in enumerate(varying) if kernel.args[i].name != name)
        first = next(apart, len(varying))
        self._first = struct.Struct(pack_format(kernel.args[:first])).pack_into, first
        known = {x.name: x for x in kernel.args}
        others = [(known[name], i) for i, name in enumerate(varying) if i >= first]
        self._others = [(struct.Struct("<" + _CODES[x.type]).pack_into, x.offset, i) for x, i in others]
        if tuple(varying) == (*POINTERS, "alpha"):
            begin, alpha = kernel.args[first].offset, known["alpha"]
            between = self._template[begin : alpha.offset]
            code = f"{pack_format(kernel.args[:first])}{len(between)}s{_CODES[alpha.type]}"
            self._product = struct.Struct(code).pack_into, between

    def launch(self, stream: int, values: tuple[float, ...], served: Call | None = None) -> None:
        """Launch on a stream of the current device, with the varying arguments, and count that.

        `served`: the call of which this is the only launch.
        """
        try:
            block = self._free.pop()
        except IndexError:
            block = ArgumentBlock(len(self._template))
            block.buffer.raw = self._template
        buffer = block.buffer
        pack, end = self._first
        pack(buffer, 0, *values[:end])
        for pack, offset, i in self._others:
            pack(buffer, offset, values[i])
        hip.launch(self._handle, self._workgroups, self._threads, stream, block.extra)
        self._free.append(block)
        if served is None:
            tally.count_kernel(self.name)
        else:
            tally.count_launched(served)

    def launch_product(self, stream: int, a: int, b: int, c: int, alpha: float, served: Call) -> None:
        """Launch a product without vectors and scales, as by `launch`, which takes half as long again."""
        try:
            block = self._free.pop()
        except IndexError:
            block = ArgumentBlock(len(self._template))
            block.buffer.raw = self._template
        pack, between = self._product
        pack(block.buffer, 0, a, b, c, 0, 0, 0, between, alpha)
        hip.launch(self._handle, self._workgroups, self._threads, stream, block.extra)
        self._free.append(block)
        tally.count_launched(served)


_free: list[ArgumentBlock] = []  # of launches that are not bound
_functions: dict[tuple[int, str], Function] = {}
_modules: dict[int, tuple[CodeObject, Owner]] = {}
_loaded: dict[int, Registry[Owner]] = {}  # modules by device


def function(device: int, name: str) -> Function:
    """Return a kernel of the device's code object, which is loaded at its first use."""
    found = _functions.get((device, name))
    if found is None:
        found = once(_functions, (device, name), partial(_load_function, device, name))
    return found


def _load_function(device: int, name: str) -> Function:
    once(_modules, device, partial(_load_module, device))
    while (spare := _loaded[device].reclaim()) is not None:  # loaded by interrupted calls
        _loaded[device].free(hip.runtime().handle, spare)
    built, module = _modules[device]
    kernel: Kernel | None = built.kernels.get(name)
    if kernel is None:
        if name in code_object(built.arch).kernels:
            raise KernelNotFoundError(
                f"{name} was built after this process had loaded kernels; restart the process"
            )
        raise KernelNotFoundError(
            f"no kernel {name} for {built.arch}; built: {', '.join(built.kernels)}; run: {MAKE_LINE}"
        )
    if (refused := refusal(device, kernel)) is not None:
        raise UnsupportedError(refused)
    packer = struct.Struct(pack_format(kernel.args))
    with hip.on_device(device):
        handle = hip.call("hipModuleGetFunction", module.ptr, name.encode())
    return Function(name, handle, kernel.threads, kernel.tile, kernel.args, packer, built.codes)


def _load_module(device: int) -> tuple[CodeObject, Owner]:
    built = code_object(hip.arch(device))
    try:
        image = built.path.read_bytes()
    except OSError as error:
        raise KernelNotFoundError(
            f"the code object {built.path} cannot be read ({error.strerror}); run: {MAKE_LINE}"
        ) from error
    if hashlib.sha256(image).hexdigest() != built.sha256:
        raise KernelNotFoundError(
            f"the code object {built.path} does not match the manifest; run: {MAKE_LINE}"
        )
    registry = _loaded.setdefault(device, Registry(Owner, "hipModuleLoadData", "hipModuleUnload"))
    with hip.on_device(device):
        code, module = registry.allocate(hip.runtime().handle, 0, image)
    if module is None:
        raise hip.failure("hipModuleLoadData", code)
    return built, module


def launch(kernel: Function, workgroups: int, stream: int, /, **values: Value) -> None:
    """Launch on a stream of the current device."""
    packed = kernel.pack(values)
    try:
        block = _free.pop()
    except IndexError:
        block = ArgumentBlock()
    ctypes.memmove(block.buffer, packed, len(packed))
    block.size.value = len(packed)
    hip.launch(kernel.handle, workgroups, kernel.threads, stream, block.extra)
    _free.append(block)
    tally.count_kernel(kernel.name)


def launch_tiles(device: int, name: str, rows: int, columns: int, stream: int, /, **values: Value) -> None:
    """Launch a kernel over a matrix, with one workgroup per tile."""
    kernel = function(device, name)
    workgroups = _tiles(kernel, rows, columns)
    if workgroups:
        launch(kernel, workgroups, stream, **values)


def bind_tiles(
    device: int,
    name: str,
    rows: int,
    columns: int,
    varying: Sequence[str],
    /,
    *,
    matrices: int = 1,
    **fixed: Value,
) -> BoundLaunch | None:
    """Bind such a launch, over `matrices` matrices; None if there are no tiles."""
    kernel = function(device, name)
    workgroups = _tiles(kernel, rows, columns) * matrices
    return BoundLaunch(kernel, workgroups, varying, fixed) if workgroups else None


def _tiles(kernel: Function, rows: int, columns: int) -> int:
    tile_rows, tile_columns = kernel.tile
    tiles = -(-rows // tile_rows) * -(-columns // tile_columns)
    most = _MAX_THREADS // kernel.threads
    if max(rows, columns) > _MAX_EXTENT or tiles > most:
        required = f"x must have at most {_MAX_EXTENT} rows and columns, and {most} tiles"
        tile = f"a tile has {tile_rows} rows and {tile_columns} columns"
        raise UnsupportedError(requirement(required, f"{rows} x {columns} for the kernel", tile))
    return tiles


def share_rows(kernel: Function, rows: int, length: int) -> tuple[int, int]:
    """How a kernel that has whole rows in registers takes so many of this length.

    Returns
    -------
    shift, sets : int
        A row has 2**shift threads; so many workgroups have all rows at the same time.
    """
    values = kernel.tile[0] // kernel.threads  # of a thread
    most = kernel.threads.bit_length() - 1
    shift = min(max(4, (-(-length // values) - 1).bit_length()), most)
    sets = -(-rows // (kernel.threads >> shift))
    if max(rows, length) > _MAX_EXTENT or sets > _MAX_THREADS // kernel.threads:
        required = f"x must have at most {_MAX_EXTENT} rows and columns, and {_MAX_THREADS} threads"
        raise UnsupportedError(requirement(required, f"{rows} x {length} for the kernel"))
    return shift, sets


def copy_strided(
    device: int,
    stream: int,
    itemsize: int,
    src: tuple[int, int, int],
    dst: tuple[int, int, int],
    rows: int,
    columns: int,
    padded_columns: int = 0,
) -> None:
    """Copy a matrix between any two layouts, and pad its rows with zeros.

    `src` and `dst` are each an address, a row stride and a column stride in bytes. `device` is current.
    """
    padded = max(columns, padded_columns)
    if rows == 0 or padded == 0:
        return
    kernel = function(device, f"copy_strided_b{itemsize}")
    tile_rows, tile_columns = kernel.tile
    launch(
        kernel,
        -(-rows // tile_rows) * -(-padded // tile_columns),
        stream,
        src=src[0],
        dst=dst[0],
        src_row_stride=src[1],
        src_col_stride=src[2],
        dst_row_stride=dst[1],
        dst_col_stride=dst[2],
        rows=rows,
        cols=columns,
        pad_cols=padded,
    )


def bind_scale_order(
    device: int,
    strides: tuple[int, int],
    rows: int,
    k: int,
    k_tile: int,
    row_block: int = 1,
    col_block: int = 1,
) -> BoundLaunch:
    """Bind the copy of e8m0 scales (rows, K/32) with these strides to the order that a K tile needs.

    `row_block` rows and `col_block` blocks of 32 share a scale.
    """
    more = {"k_tile": k_tile, "col_block": col_block}
    return _bind_scales("mx_gemm_scale", device, strides, rows, k, gemm_scale_step(rows), row_block, **more)


def bind_float_scale_order(
    device: int,
    strides: tuple[int, ...],
    rows: int,
    k: int,
    row_block: int,
    *,
    e8m0: bool,
    whole: bool,
    mn_major: bool,
) -> BoundLaunch:
    """Bind the copy of float scales (rows / row_block, K/128) with these strides to the order of products.

    `whole`: for the product with an operand that has no scales. `mn_major`: for an operand that is.
    """
    step = mn_scale_step(rows) if mn_major else gemm_scale_step(rows)
    more = {"e8m0": e8m0, "whole": whole, "mn_major": mn_major}
    return _bind_scales("gemm_float_scale", device, strides, rows, k, step, row_block, **more)


def _bind_scales(
    name: str,
    device: int,
    strides: tuple[int, ...],
    rows: int,
    k: int,
    step: int,
    row_block: int,
    **more: Value,
) -> BoundLaunch:
    kernel = function(device, name)
    steps = {"src_row_stride": strides[0], "src_col_stride": strides[1], "step": step}
    fixed = {**steps, "rows": rows, "k": k, "row_block": row_block, **more}
    words = gemm_scale_bytes(step, k) // 4
    return BoundLaunch(kernel, -(-words // kernel.tile[0]), ("src", "dst"), fixed)
