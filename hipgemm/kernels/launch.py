"""Code objects on devices, and launches. The only module that knows how kernel arguments are laid out."""

from __future__ import annotations

import ctypes
import hashlib
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import KernelNotFoundError, UnsupportedError, sentence
from ..formats.groups import group_slots
from ..runtime import hip as _hip
from ..runtime import usage
from .manifest import MAKE_LINE, Argument, CodeObject, Kernel, code_object

_CODES = {"ptr": "Q", "i64": "q", "u32": "I", "f32": "f"}
_MAX_ARGUMENT_BYTES = 4096
_MAX_EXTENT, _MAX_THREADS = 2**31, 2**32 - 1  # kernels count in 4 bytes, HIP a launch's threads
_POINTER_BYTES = 8

# What the kernels of each operation take, in order. A manifest that says otherwise is of another version.
_BATCH = "a_outer a_inner b_outer b_inner c_outer c_inner split_stride"
_GEMM = (
    f"a b c alpha_ptr col_scale bias lda ldb ldc {_BATCH} m n k batch_inner splits split_tiles alpha "
    "out_type bias_type"
)
_SCALES = "a_scale b_scale a_scale_step b_scale_step a_scale_outer a_scale_inner b_scale_outer b_scale_inner"
_GROUPED = "a b c offsets status lda ldb ldc group_stride m n k groups out_type accumulate"
_GROUP_SCALES = "a_scale b_scale a_scale_step b_scale_step scale_group_stride"
_MX = (
    "src row_data row_scale row_gemm_scale col_data col_scale col_gemm_scale src_row_stride src_col_stride "
    "row_pitch row_scale_pitch col_pitch col_scale_pitch rows cols in_type element rule hadamard"
)
ARGUMENTS: dict[str, list[str]] = {
    op: names.split()
    for op, names in {
        "gemm": _GEMM,
        "scaled_gemm": f"{_GEMM} {_SCALES}",
        "grouped_matmul": _GROUPED,
        "grouped_wgrad": _GROUPED,
        "scaled_grouped_matmul": f"{_GROUPED} {_GROUP_SCALES}",
        "scaled_grouped_wgrad": f"{_GROUPED} {_GROUP_SCALES}",
        "split_reduce": (
            "src dst alpha_ptr col_scale bias a_scale b_scale src_ld split_stride src_batch ldc c_outer "
            "c_inner a_scale_outer a_scale_inner b_scale_outer b_scale_inner m n batch_inner splits "
            "a_scale_step b_scale_step alpha out_type bias_type"
        ),
        "plain": (
            "a b c alpha_ptr col_scale bias a_scale b_scale a_row a_k a_outer a_inner "
            "b_col b_k b_outer b_inner c_row c_col c_outer c_inner "
            "a_scale_row a_scale_block a_scale_outer a_scale_inner "
            "b_scale_col b_scale_block b_scale_outer b_scale_inner "
            "m n k batch_inner batches alpha a_format b_format out_type bias_type"
        ),
        "copy": ("src dst src_row_stride src_col_stride dst_row_stride dst_col_stride rows cols pad_cols"),
        "amax": "src amax src_row_stride src_col_stride rows cols amax_step in_type",
        "quantize_fp8": (
            "src dst amax scale next src_row_stride src_col_stride dst_pitch rows cols amax_step eps "
            "in_type element"
        ),
        "quantize_mxfp8": _MX,
        "quantize_mxfp8_f32": _MX,
        "quantize_mxfp4": _MX,
        "quantize_mxfp4_f32": _MX,
        "mx_group_scale": "src dst offsets status src_row_stride src_col_stride rows cols groups by_group",
        "quantize_mxfp8_groups": (
            "src data scale gemm_scale offsets status src_row_stride src_col_stride data_pitch scale_pitch "
            "rows cols groups in_type element rule"
        ),
        "dequantize": (
            "data scale dst data_pitch scale_row_stride scale_col_stride dst_pitch rows cols format "
            "out_type hadamard"
        ),
        "fp4_to_fp8": "src dst src_pitch dst_pitch rows cols",
        "rescale": (
            "src dst row_factor col_factor src_row_stride src_col_stride dst_pitch rows cols in_type "
            "out_type divide"
        ),
        "sum_rows": "src dst src_row_stride src_col_stride rows cols in_type",
        "pack_mx_scales": "src dst src_row_stride src_col_stride rows blocks",
        "mx_gemm_scale": "src dst src_row_stride src_col_stride rows k step bits",
    }.items()
}
# What kernels take for names.
TYPE_CODES = {"bf16": 0, "f16": 1, "f32": 2}
ELEMENT_CODES = {"fp8_e4m3": 0, "fp8_e5m2": 1, "mxfp8_e4m3": 0, "mxfp8_e5m2": 1, "mxfp4_e2m1": 0}
FORMAT_CODES = {"fp8_e4m3": 0, "fp8_e5m2": 1, "mxfp8_e4m3": 2, "mxfp8_e5m2": 3, "mxfp4_e2m1": 4}
PLAIN_CODES = {
    **TYPE_CODES,
    "fp8_e4m3": 16,
    "fp8_e5m2": 17,
    "mxfp8_e4m3": 18,
    "mxfp8_e5m2": 19,
    "mxfp4_e2m1": 20,
}
RULE_CODES = {"unit": 0, "floor": 1, "rceil": 2, "even": 3}


def pack_format(kernel: Kernel) -> str:
    """Return the `struct` format that puts each argument at its offset.

    Examples
    --------
    >>> from .manifest import Argument
    >>> args = (Argument("m", "u32", 0, 4), Argument("c", "ptr", 8, 8))
    >>> pack_format(Kernel("k", "gemm", "gfx950", 64, (64, 64, 64), args))
    '<I4xQ'
    """
    text, at = "<", 0
    for argument in kernel.args:
        if argument.type not in _CODES or argument.offset < at:
            raise KernelNotFoundError(f"{kernel.name}: no way to pack {argument}; run: {MAKE_LINE}")
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
    size: int
    args: tuple[Argument, ...] = field(repr=False)
    pack_into: Callable[..., None] = field(repr=False)


class ArgumentBlock:
    """A block of arguments, and HIP's description of it. HIP copies it at the launch."""

    def __init__(self, size: int = _MAX_ARGUMENT_BYTES) -> None:
        self.buffer = (ctypes.c_char * size)()
        self.size = ctypes.c_size_t(size)
        pointer, length, end = 1, 2, 3  # HIP_LAUNCH_PARAM_*
        self.config = (ctypes.c_void_p * 5)(
            pointer, ctypes.addressof(self.buffer), length, ctypes.addressof(self.size), end
        )
        self.extra = _hip.launch_extra(ctypes.addressof(self.config))

    @classmethod
    def copy_of(cls, extra: Any) -> ArgumentBlock:
        """A block of its own with the arguments that a launch is given as `extra`."""
        _, source, _, size, _ = (ctypes.c_size_t * 5).from_address(int(extra))
        made = cls(ctypes.c_size_t.from_address(size).value)
        ctypes.memmove(made.buffer, source, len(made.buffer))
        return made


class Prepared:
    """A launch that is repeated with other addresses: whatever else it is given is packed once.

    What may change are the pointers that a kernel's arguments begin with, alpha or eps, and the addresses of
    a product's scales. Each launch under way has a block of arguments of its own, whatever thread, signal
    handler or finalizer it comes from; blocks are kept for the next one.
    """

    __slots__ = (
        "_free",
        "_handle",
        "_name",
        "_number",
        "_pack",
        "_scales",
        "_template",
        "_threads",
        "_workgroups",
    )

    def __init__(self, kernel: Function, workgroups: int, values: Sequence[float]) -> None:
        """Take the arguments in the order of `ARGUMENTS`, with anything for those that change."""
        self._name, self._handle, self._threads = kernel.name, kernel.handle, kernel.threads
        self._workgroups = workgroups
        packed = bytearray(kernel.size)
        kernel.pack_into(packed, 0, *values)
        self._template = bytes(packed)
        self._free: list[ArgumentBlock] = []
        pointers = 0
        while kernel.args[pointers].type == "ptr" and kernel.args[pointers].name != "a_scale":
            pointers += 1
        assert kernel.args[pointers - 1].offset == _POINTER_BYTES * (pointers - 1)
        at = {x.name: x.offset for x in kernel.args}
        self._pack = struct.Struct(f"<{pointers}Q").pack_into
        self._number, self._scales = at.get("alpha", at.get("eps", 0)), at.get("a_scale", 0)

    def launch(
        self,
        stream: int,
        pointers: tuple[int, ...],
        number: float | None = None,
        scales: tuple[int, ...] = (),
    ) -> None:
        """Launch on a stream of the current device."""
        try:
            block = self._free.pop()
        except IndexError:
            block = ArgumentBlock(len(self._template))
            block.buffer.raw = self._template
        buffer = block.buffer
        self._pack(buffer, 0, *pointers)
        if number is not None:
            _pack_number(buffer, self._number, number)
        if scales:
            _pack_scales(buffer, self._scales, *scales)
        _hip.launch(self._handle, self._workgroups, self._threads, stream, block.extra)
        self._free.append(block)

    def count(self) -> None:
        """Count a launch; calls that are one are counted at once by `usage.count_launched`."""
        usage.count_kernel(self._name)


_pack_number, _pack_scales = struct.Struct("<f").pack_into, struct.Struct("<2Q").pack_into


class _Blocks(threading.local):
    """A thread's argument blocks: one, or more where signal handlers or finalizers launch during a launch."""

    def __init__(self) -> None:
        self.free: list[ArgumentBlock] = []


_blocks = _Blocks()
_functions: dict[tuple[int, str], Function] = {}
_modules: dict[int, tuple[CodeObject, Any]] = {}
_lock = threading.RLock()


def function(device: int, name: str) -> Function:
    """Return a kernel of the device's code object, loading that at its first use."""
    found = _functions.get((device, name))
    if found is None:
        with _lock:
            found = _functions.get((device, name))
            if found is None:
                found = _functions[device, name] = _load_function(device, name)
    return found


def _load_function(device: int, name: str) -> Function:
    if device not in _modules:
        _modules[device] = _load_module(device)
    built, module = _modules[device]
    kernel = built.kernels.get(name)
    if kernel is None:
        if name in code_object(built.arch).kernels:
            raise KernelNotFoundError(
                f"{name} was built after this process had loaded kernels; start it anew"
            )
        raise KernelNotFoundError(
            f"no kernel {name} for {built.arch}; built: {', '.join(built.kernels)}; run: {MAKE_LINE}"
        )
    if [x.name for x in kernel.args] != ARGUMENTS[kernel.op]:
        raise KernelNotFoundError(
            f"{name} was built for another version of hipgemm, with other arguments; run: {MAKE_LINE}"
        )
    packer = struct.Struct(pack_format(kernel))
    with _hip.on_device(device):
        handle = _hip.call("hipModuleGetFunction", module, name.encode())
    return Function(name, handle, kernel.threads, kernel.tile, packer.size, kernel.args, packer.pack_into)


def _load_module(device: int) -> tuple[CodeObject, Any]:
    built = code_object(_hip.arch(device))
    try:
        image = built.path.read_bytes()
    except OSError as error:
        raise KernelNotFoundError(
            f"the code object {built.path} cannot be read ({error.strerror}); run: {MAKE_LINE}"
        ) from error
    if hashlib.sha256(image).hexdigest() != built.sha256:
        raise KernelNotFoundError(
            f"the code object {built.path} is not the one in the manifest; run: {MAKE_LINE}"
        )
    with _hip.on_device(device):
        return built, _hip.call("hipModuleLoadData", image)


def launch(kernel: Function, workgroups: int, stream: int, *values: float) -> None:
    """Launch on a stream of the current device, with the arguments in the order of `ARGUMENTS`."""
    free = _blocks.free
    block = free.pop() if free else ArgumentBlock()
    kernel.pack_into(block.buffer, 0, *values)
    block.size.value = kernel.size
    _hip.launch(kernel.handle, workgroups, kernel.threads, stream, block.extra)
    free.append(block)
    usage.count_kernel(kernel.name)


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
    """Copy a matrix between any two layouts, and fill up its rows with zeros.

    `src` and `dst` are each an address, the bytes from row to row, and the bytes from column to column.
    `device` is the current one.
    """
    padded = max(columns, padded_columns)
    if rows == 0 or padded == 0:
        return
    kernel = function(device, f"copy_strided_b{itemsize}")
    tile_rows, tile_columns = kernel.tile
    workgroups = -(-rows // tile_rows) * -(-padded // tile_columns)
    launch(kernel, workgroups, stream, src[0], dst[0], *src[1:], *dst[1:], rows, columns, padded)


def tiled(device: int, name: str, rows: int, columns: int, stream: int, *values: float) -> None:
    """Launch a helper kernel over a matrix, a workgroup for each of its tiles."""
    kernel = function(device, name)
    workgroups = _tiles(kernel, rows, columns)
    if workgroups:
        launch(kernel, workgroups, stream, *values)


def prepared(
    device: int, name: str, rows: int, columns: int, *values: float, times: int = 1
) -> Prepared | None:
    """Prepare such a launch, over so many matrices; None where there are no tiles."""
    kernel = function(device, name)
    workgroups = _tiles(kernel, rows, columns) * times
    return Prepared(kernel, workgroups, values) if workgroups else None


def _tiles(kernel: Function, rows: int, columns: int) -> int:
    tile_rows, tile_columns = kernel.tile
    tiles = -(-rows // tile_rows) * -(-columns // tile_columns)
    most = _MAX_THREADS // kernel.threads
    if max(rows, columns) > _MAX_EXTENT or tiles > most:
        required = f"x must have at most {_MAX_EXTENT} rows and columns, and {most} tiles"
        tile = f"a tile has {tile_rows} rows and {tile_columns} columns"
        raise UnsupportedError(sentence(required, f"{rows} x {columns} for the kernel", tile))
    return tiles


def gemm_scales(
    device: int,
    stream: int,
    src: tuple[int, int, int],
    dst: int,
    rows: int,
    k: int,
    bits: int,
) -> None:
    """Bring e8m0 scales (rows, K/32), given by address and strides, to the order in which products read."""
    kernel = function(device, "mx_gemm_scale")
    words = gemm_scale_bytes(rows, k) // 4
    launch(
        kernel,
        -(-words // kernel.tile[0]),
        stream,
        src[0],
        dst,
        *src[1:],
        rows,
        k,
        gemm_scale_step(rows),
        bits,
    )


SCALE_ROWS = 16  # that scales in the order of products deal out together
SCALE_ROW_BYTES = 2  # from row to row of these


def gemm_scale_step(rows: int) -> int:
    """Rows as scales in the order of products count them."""
    return -(-rows // SCALE_ROWS) * SCALE_ROWS


def across_scale_step(rows: int) -> int:
    """The same for operands that products read across K."""
    return -(-rows // 64) * 64


def across_scale_bytes(rows: int, columns: int, groups: int) -> int:
    """Bytes of scales down the columns of groups of rows, in the order of products across K.

    >>> across_scale_bytes(300, 65, 2)
    4096
    """
    return group_slots(rows, groups, 256) * 8 * across_scale_step(columns)


def gemm_scale_bytes(rows: int, k: int) -> int:
    """Bytes of scales in the order of products.

    >>> gemm_scale_bytes(17, 257)
    512
    """
    return max(1, -(-k // 256)) * 8 * gemm_scale_step(rows)
