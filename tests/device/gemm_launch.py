"""The product kernels alone, with all of their arguments, in memory that ends where the operands end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from hipgemm.formats.elements import FORMATS, QUANTIZED, format_of
from hipgemm.kernels import launch as _launch
from hipgemm.kernels.manifest import Kernel, code_object
from hipgemm.kernels.scale_layout import float_scale_bytes, gemm_scale_bytes, gemm_scale_step, mn_scale_step
from hipgemm.runtime import hip as _hip

TYPES = {
    name: np.dtype(x) for name, x in (("bf16", ml_dtypes.bfloat16), ("f16", np.float16), ("f32", np.float32))
}
ELEMENTS = {**TYPES, **{name: form.dtype for name, form in QUANTIZED.items()}}
ELEMENTS |= {f"{name}_block": ELEMENTS[name] for name in ("fp8_e4m3", "fp8_e5m2")}
KERNELS = code_object(_hip.arch(0)).kernels  # of the device that serves the tests
GEMMS = {k.name: k for k in KERNELS.values() if k.op in ("gemm", "scaled_gemm")}
SCHEDULES = list(dict.fromkeys(k.schedule for k in GEMMS.values()))
_BF16 = [k for k in GEMMS.values() if k.a == k.b == "bf16"]
# Of the largest tile and of the smallest; and that of 6-bit formats in the largest.
LARGE_AND_SMALL = list(
    dict.fromkeys(
        pick(of, key=lambda k: k.tile).schedule
        for pick, of in (
            (max, _BF16),
            (min, _BF16),
            (max, [k for k in GEMMS.values() if k.a.startswith("mxfp6")]),
        )
        if of
    )
)


def examples(
    formats: Iterable[str | tuple[str, str]], schedules: Iterable[str], layouts: Iterable[str] = ("nt",)
) -> list[str]:
    """Of each schedule, pair and layout: the largest tile of PingPong, the smallest of others, or both."""
    found = []
    for schedule, form, layout in itertools.product(schedules, formats, layouts):
        pair = (form, form) if isinstance(form, str) else form
        these = [k for k in GEMMS.values() if (k.a, k.b, k.layout, k.schedule) == (*pair, layout, schedule)]
        if these:
            picks = {"PingPong": [max], "SingleBuffer": [max, min]}.get(schedule, [min])
            found += [pick(these, key=lambda k: k.tile).name for pick in picks]
    return list(dict.fromkeys(found))


UNWRITTEN = 0x7F  # bytes of memory that must not be used: NaN in most formats


@dataclass
class Memory:
    """Device allocations of exactly the bytes asked for, unlike the package's pool."""

    pointers: list[object] = field(default_factory=list)

    def put(self, x: np.ndarray) -> int:
        x = np.ascontiguousarray(x)
        pointer = _hip.call("hipMalloc", max(1, x.nbytes))
        self.pointers.append(pointer)
        _hip.copy("HostToDevice", int(pointer), x.ctypes.data, x.nbytes, 0)
        _hip.synchronize()
        return int(pointer)

    def get(self, pointer: int, like: np.ndarray) -> np.ndarray:
        out = np.empty_like(like)
        _hip.copy("DeviceToHost", out.ctypes.data, pointer, out.nbytes, 0)
        _hip.synchronize()
        return out

    def free(self) -> None:
        _hip.synchronize()
        for pointer in self.pointers:
            _hip.call("hipFree", pointer)
        self.pointers.clear()


def launch(name: str, workgroups: int, **values: _launch.Value) -> None:
    """Launch a kernel with arguments by name; those not given are 0."""
    function = _launch.function(0, name)
    _launch.launch(function, workgroups, 0, **{x.name: 0 for x in function.args} | values)


def launch_in_order(function: _launch.Function, workgroups: int, stream: int, *values: _launch.Value) -> None:
    """Launch a kernel with arguments in the order in which it takes them, without stages."""
    names = [x.name for x in function.args]
    stages = _launch.NO_STAGES if "staged" in names else {}
    named = zip((name for name in names if name not in stages), values, strict=True)
    _launch.launch(function, workgroups, stream, **dict(named), **stages)


@dataclass
class Placed:
    """A batch of matrices in memory."""

    pointer: int
    outer: int  # bytes between entries; 0 where all share one
    inner: int
    ld: int = 0  # elements from row to row


def place(memory: Memory, entries: np.ndarray, gap: int) -> tuple[int, int, int]:
    """Put a batch of byte strings (outer, inner, size) into memory, at least 16 * gap bytes apart."""
    outer, inner, size = entries.shape
    step = (size + 15) // 16 * 16 + 16 * gap
    line = inner * step + 32 * gap
    full = np.full((outer, line), UNWRITTEN, np.uint8)
    for i in range(inner):
        full[:, i * step : i * step + size] = entries[:, i]
    end = (outer - 1) * line + (inner - 1) * step + size
    return memory.put(full.reshape(-1)[:end]), line if outer > 1 else 0, step if inner > 1 else 0


def stored(codes: np.ndarray, chunk: int, ld: int) -> np.ndarray:
    """The bytes of rows of `ld` elements: packed, zeros to whole chunks of 16 bytes, then UNWRITTEN."""
    length = codes.shape[-1]
    bits = next(f.bits for f in (*FORMATS.values(), *QUANTIZED.values()) if f.dtype == codes.dtype)
    used = -(-length // chunk) * chunk * bits // 8
    full = np.full((*codes.shape[:-1], ld * bits // 8), UNWRITTEN, np.uint8)
    full[..., :used] = 0
    plain = np.ascontiguousarray(codes).view(np.uint8).reshape(*codes.shape[:-1], length * codes.itemsize)
    if bits < 8:
        digits = plain[..., None] >> np.arange(bits, dtype=np.uint8) & 1
        plain = np.packbits(digits.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")
    full[..., : plain.shape[-1]] = plain
    return full


def put_operand(memory: Memory, codes: np.ndarray, strided: bool, chunk: int, gap: int) -> Placed:
    """Operands (outer, inner, rows, K): packed, padded with zeros to chunks of 16 bytes, or K-strided."""
    x = np.swapaxes(codes, -1, -2) if strided else codes
    rows, length = x.shape[-2:]
    ld = max(1, -(-length // chunk)) * chunk + gap * chunk
    full = stored(x, 1 if strided else chunk, ld)
    pitch = full.shape[-1]
    row = length * x.itemsize if strided else -(-length // chunk) * chunk * pitch // ld
    # K-strided operands are read by dwords.
    end = -(-((rows - 1) * pitch + row) // 4) * 4
    entries = full.reshape(*x.shape[:2], -1)[..., : max(4, end)]
    return Placed(*place(memory, entries, gap), ld)


def put_scales(
    memory: Memory, kernel: Kernel, side: int, scale: np.ndarray, k: int, gap: int
) -> tuple[Placed, int]:
    """Scales of the operands of a side, and their step; scales of blocks are converted to GEMM order."""
    if scale.ndim == 3:
        entries = np.ascontiguousarray(scale).view(np.uint8).reshape(*scale.shape[:2], -1)
        return Placed(*place(memory, entries, gap)), int(scale.shape[-1] > 1)
    outer, inner, rows, blocks = scale.shape
    floats = scale.dtype == np.float32
    mn_major = kernel.layout[side] == "tn"[side]
    step = mn_scale_step(rows) if mn_major else gemm_scale_step(rows)
    size = gemm_scale_bytes(step, k)
    name = "gemm_float_scale" if floats else "mx_gemm_scale"
    alone = kernel.a == "bf16"  # has no scales
    more = {"whole": alone, "mn_major": mn_major} if floats else {"k_tile": kernel.tile[2], "col_block": 1}
    full = float_scale_bytes(step, k, alone) if floats else size
    placed = Placed(*place(memory, np.full((outer, inner, full), 255, np.uint8), gap))
    for o in range(outer):
        for i in range(inner):
            launch(
                name,
                -(-size // 4 // KERNELS[name].tile[0]),
                src=memory.put(scale[o, i]) if blocks else 0,
                dst=placed.pointer + o * placed.outer + i * placed.inner,
                src_row_stride=blocks * scale.itemsize,
                src_col_stride=scale.itemsize,
                rows=rows,
                k=k,
                step=step,
                row_block=1,
                **more,
            )
    return placed, step


@dataclass
class Product:
    """C = A B^T for each entry of a batch. Axes: outer, inner, rows, K; a length of 1 is broadcast."""

    kernel: Kernel
    a: np.ndarray
    b: np.ndarray
    a_scale: np.ndarray  # (outer, inner, rows or 1) float32; (outer, inner, rows, blocks) e8m0 bytes
    b_scale: np.ndarray

    @classmethod
    def draw(
        cls,
        kernel: Kernel,
        m: int,
        n: int,
        k: int,
        *,
        a_batch: tuple[int, int] = (1, 1),
        b_batch: tuple[int, int] = (1, 1),
        row_scales: bool = False,
        exact: bool = True,
    ) -> Product:
        """Small integers and powers of two, whose products are exact in any order; or arbitrary values."""
        rng = np.random.default_rng([m, n, k, *a_batch, *b_batch])

        def codes(form: str, *shape: int) -> np.ndarray:
            x = rng.integers(-3, 4, shape) if exact else rng.standard_normal(shape)
            return x.astype(np.float32).astype(ELEMENTS[form])

        def scale(form: str, batch: tuple[int, int], rows: int) -> np.ndarray:
            if form.startswith("mx"):
                low, high = (126, 130) if exact else (117, 138)
                return rng.integers(low, high, (*batch, rows, -(-k // 32))).astype(np.uint8)
            if form.endswith("_block"):
                factor = rng.choice([0.25, 0.5, 1.0, 1.25, 1.5, 3.0], (*batch, rows, -(-k // 128)))
                return (factor * (1 if exact else 1.1)).astype(np.float32)
            if not form.startswith("fp8"):
                return np.ones((1, 1, 1), np.float32)
            power = np.exp2(rng.integers(-3, 4, (*batch, rows if row_scales else 1))).astype(np.float32)
            return power * np.float32(1 if exact else 1.1)

        return cls(
            kernel,
            codes(kernel.a, *a_batch, m, k),
            codes(kernel.b, *b_batch, n, k),
            scale(kernel.a, a_batch, m),
            scale(kernel.b, b_batch, n),
        )

    @property
    def batch(self) -> tuple[int, int]:
        """Entries of the result."""
        outer, inner = np.broadcast_shapes(self.a.shape[:2], self.b.shape[:2])
        return outer, inner

    @property
    def turns(self) -> int:
        """K tiles, rounded up to an even number."""
        tiles = max(1, -(-self.a.shape[-1] // self.kernel.tile[2]))
        return tiles + tiles % 2

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """The product in float64, and that of magnitudes."""
        a, b = _values(self.a, self.a_scale), np.swapaxes(_values(self.b, self.b_scale), -1, -2)
        return a @ b, np.abs(a) @ np.abs(b)

    def run(
        self,
        memory: Memory,
        *,
        out: str = "f32",
        split_tiles: int = 0,
        gap: int = 1,
        alpha: float = 1.0,
        col_scale: np.ndarray | None = None,
        bias: np.ndarray | None = None,
    ) -> np.ndarray:
        """The batch of C; memory around it must not have changed. `split_tiles` 0: K is not split."""
        kernel, (outer, inner) = self.kernel, self.batch
        (m, k), n = self.a.shape[-2:], self.b.shape[-2]
        a_strided, b_strided = kernel.layout[0] == "t", kernel.layout[1] == "n"
        a = put_operand(memory, self.a, a_strided, kernel.chunk(0), gap)
        b = put_operand(memory, self.b, b_strided, kernel.chunk(1), gap)
        epilogue = {"alpha": alpha, "out_type": FORMATS[out]}
        if col_scale is not None:
            epilogue["col_scale"] = memory.put(col_scale)
        if bias is not None:
            epilogue["bias"] = memory.put(bias)
            epilogue["bias_type"] = format_of(bias.dtype)
        scales = {}
        if kernel.op == "scaled_gemm":
            for side, (name, scale) in enumerate((("a_scale", self.a_scale), ("b_scale", self.b_scale))):
                placed, step = put_scales(memory, kernel, side, scale, k, gap)
                scales |= {name: placed.pointer, f"{name}_step": step}
                scales |= {f"{name}_outer": placed.outer, f"{name}_inner": placed.inner}

        item, ldc = TYPES[out].itemsize, n + gap
        c_inner = (m * ldc * item + 15) // 16 * 16 + 16 * gap
        c_outer = inner * c_inner + 32 * gap
        before = np.full(outer * c_outer + 32, UNWRITTEN, np.uint8)
        c = memory.put(before)
        target = {"ldc": ldc, "c_outer": c_outer, "c_inner": c_inner}
        shape = {"m": m, "n": n, "batch_inner": inner}
        operands = {
            "a": a.pointer,
            "lda": a.ld,
            "a_outer": a.outer,
            "a_inner": a.inner,
            "b": b.pointer,
            "ldb": b.ld,
            "b_outer": b.outer,
            "b_inner": b.inner,
            "k": k,
        }
        groups = -(-m // kernel.tile[0]) * -(-n // kernel.tile[1]) * outer * inner
        if not split_tiles:
            launch(
                kernel.name, groups, **operands, **shape, **target, **scales, **epilogue, c=c + 16, splits=1
            )
        else:
            splits, pitch = -(-self.turns // split_tiles), n + 3
            sums = np.full((outer, inner, splits, m, pitch), np.nan, np.float32)
            work, (outer_bytes, inner_bytes, split_stride) = memory.put(sums), sums.strides[:3]
            by_block = kernel.b.startswith("mx") or kernel.b.endswith("_block")
            launch(
                kernel.name,
                groups * splits,
                **operands,
                **shape,
                **(scales if by_block else {}),
                c=work,
                ldc=pitch,
                c_outer=outer_bytes,
                c_inner=inner_bytes,
                splits=splits,
                split_tiles=split_tiles,
                split_stride=split_stride,
                alpha=1.0,
                out_type=FORMATS["f32"],
            )
            rows, columns = KERNELS["split_reduce"].tile
            launch(
                "split_reduce",
                -(-m // rows) * -(-n // columns) * outer * inner,
                src=work,
                src_ld=pitch,
                src_batch=inner_bytes,
                splits=splits,
                split_stride=split_stride,
                dst=c + 16,
                **shape,
                **target,
                **({} if by_block else scales),
                **epilogue,
            )
        after = memory.get(c, before)
        at = np.arange(outer)[:, None] * c_outer + np.arange(inner) * c_inner + 16
        at = at[..., None, None] + np.arange(m)[:, None] * (ldc * item) + np.arange(n * item)
        got = after[at].view(TYPES[out])
        after[at] = UNWRITTEN
        assert (after == UNWRITTEN).all(), "written outside C"
        return got


def _values(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The values of elements and scales."""
    values = codes.astype(np.float64)
    if scale.ndim == 4 and scale.dtype != np.uint8:
        return values * np.repeat(scale.astype(np.float64), 128, axis=-1)[..., : codes.shape[-1]]
    if scale.dtype != np.uint8:
        return values * scale.astype(np.float64)[..., None]
    factor = np.where(scale == 255, np.nan, np.exp2(scale.astype(np.float64) - 127))
    return values * np.repeat(factor, 32, axis=-1)[..., : codes.shape[-1]]
