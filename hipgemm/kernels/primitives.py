"""Primitives: what kernels assume about the hardware, one by one; which kernels rest on those that failed.

``python -m hipgemm selftest --primitives`` tries each (inspect/primitives.py) and records those that fail on
a device. From then on the kernels that rest on them are refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..formats.elements import named_format
from ..runtime import hip, record
from .manifest import Kernel, code_object

PREFIX = "primitive_"
COMMAND = "python -m hipgemm selftest --primitives"


@dataclass(frozen=True)
class Primitive:
    """One assumption.

    Attributes
    ----------
    name : str
        An instruction, or what it is about.
    assumed : str
        What must hold.
    rests : callable
        Whether a kernel rests on it.
    quantized : tuple of str
        Formats that are quantized to by it. Kernels of products rest on it only where their `out_format` is
        one of these.
    functions : str
        What rests on it besides kernels.
    """

    name: str
    assumed: str
    rests: Callable[[Kernel], bool]
    quantized: tuple[str, ...] = ()
    functions: str = ""


# ---- kernels ---------------------------------------------------------------------------------------


def _any(kernel: Kernel) -> bool:
    return kernel.op != "primitive"


def _none(kernel: Kernel) -> bool:
    return False


def _all_but(*operations: str) -> Callable[[Kernel], bool]:
    """All kernels except those whose operation begins with one of these."""
    return lambda k: _any(k) and not k.op.startswith(operations)


def _is_gemm(kernel: Kernel) -> bool:
    return bool(kernel.schedule)


def _elements(kernel: Kernel) -> list[str]:
    """The names of the operands' element types: bf16, f16, e4m3, ..."""
    return [named_format(name).name.split("_")[-1] for name in (kernel.a, kernel.b) if name]


def _multiplies(kernel: Kernel) -> bool:
    """Whether matrix instructions take the operands as they are, without converting weights to bf16."""
    return _is_gemm(kernel) and (kernel.a == "bf16") == (kernel.b == "bf16")


def _takes_fnuz(kernel: Kernel) -> bool:
    """Whether a kernel of gfx942 multiplies codes of e4m3 as its own format's."""
    of_e4m3 = (kernel.a, kernel.b, kernel.layout) == ("fp8_e4m3", "fp8_e4m3", "nt")
    return _is_gemm(kernel) and kernel.arch == "gfx942" and of_e4m3


def _is_scaled(kernel: Kernel) -> bool:
    """Whether matrix instructions apply scales."""
    return _multiplies(kernel) and (kernel.a.startswith("mx") or kernel.a.endswith("_block"))


def _widened(kernel: Kernel) -> str:
    """The elements of a matrix instruction of 16 bits, if any: gfx942 takes most of fewer bits as bf16."""
    if _takes_fnuz(kernel):
        return ""
    return "bf16" if kernel.arch == "gfx942" and kernel.a != "f16" else kernel.a


def _mn_major(bits: int) -> Callable[[Kernel], bool]:
    """An operand of such elements is stored with its rows side by side at each k."""
    return lambda k: _is_gemm(k) and k.bits == bits and (k.layout[0] == "t" or k.layout[1] == "n")


def _b_mn_major(kernel: Kernel) -> bool:
    return _is_gemm(kernel) and kernel.layout[1] == "n"


def _with(element: str, scaled: bool, rows: int = 16) -> Callable[[Kernel], bool]:
    return lambda k: (
        _multiplies(k) and _is_scaled(k) == scaled and element in _elements(k) and k.mfma_rows == rows
    )


def _of_two_layouts(kernel: Kernel) -> bool:
    """Whether one operand has 8 bits and the other fewer."""
    return _is_scaled(kernel) and len({named_format(x).bits == 8 for x in (kernel.a, kernel.b)}) == 2


def _weights(element: str) -> Callable[[Kernel], bool]:
    return lambda k: _is_gemm(k) and k.a == "bf16" and _elements(k)[1] == element


def _named(*names: str) -> Callable[[Kernel], bool]:
    """Passes whose operation begins with one of the names."""
    return lambda k: k.op.startswith(names)


# Kernels that move words, without arithmetic of floats.
_MOVES = ("copy", "mx_gemm_scale", "mx_group_scale", "pack_mx_scales")
_computes = _all_but(*_MOVES)
_stores_floats = _all_but(*_MOVES, "amax", "quantize", "gemm_float_scale")
_has_barriers = _all_but(
    *("mx_gemm_scale", "mx_group_scale", "pack_mx_scales", "gemm_float_scale"),
    *("dequantize", "elementwise", "activation_gradient"),
)
_ROUNDS_FP8 = ("quantize_fp8", "quantize_mxfp8", "rms_norm_fp8", "rms_norm_mx")
_FP8 = {"e4m3": ("fp8_e4m3", "mxfp8_e4m3"), "e5m2": ("fp8_e5m2", "mxfp8_e5m2")}
_GROUPED = ("grouped", "scaled_grouped", "quantize_mxfp8_groups", "mx_group_scale", "sum_groups")


def _primitives() -> Iterable[Primitive]:
    for bits in (16, 8):
        text = f"lane j of each 16 gets element j of {64 // bits} slices of 16 elements"
        yield Primitive(f"ds_read_b64_tr_b{bits}", text, _mn_major(bits))
    yield Primitive("ds_read_b96_tr_b6", "lane j of each 16 gets element j of 16 slices", _none)
    yield Primitive("lds_dma", "buffer_load .. lds writes 16 bytes of each lane in lane order", _is_gemm)
    yield Primitive("lds_dma_m0", "buffer_load .. lds begins at the LDS address in M0", _is_gemm)
    yield Primitive("lds_dma_offset", "the instruction's offset counts in memory and in LDS", _is_gemm)
    yield Primitive("lds_dma_range", "lanes out of range write zeros to LDS", _is_gemm)
    yield Primitive("vmcnt", "DMA and loads are complete in the order of issue", _is_gemm)
    yield Primitive(
        "lds_size",
        "a workgroup has all of LDS: 160 KiB, or 64 on gfx942",
        lambda k: _any(k) and k.lds > 32 << 10,
    )
    yield Primitive("barrier", "what a wave writes to LDS before a barrier, all read after it", _has_barriers)
    yield Primitive(
        "s_setprio", "waves of all priorities make progress", lambda k: k.schedule in ("PingPong", "LineRing")
    )
    yield Primitive("lane_moves", "DPP moves values between neighbouring lanes", _computes)
    yield Primitive("permlane16_swap", "rows of 16 lanes swap registers", _b_mn_major)
    yield Primitive("wave_scan", "votes and DPP scans over a wave", _named(*_GROUPED))
    for name in ("bf16", "f16"):
        text = f"layout of v_mfma_f32_16x16x32_{name}, or on gfx942 of two 16x16x16"
        uses = lambda k, n=name: _is_gemm(k) and _widened(k) == n  # noqa: E731
        yield Primitive(f"mfma_{name}", text, uses)
    text = "layout of v_mfma_f32_16x16x32_fp8_fp8, and half of e4m3's values: FNUZ"
    yield Primitive("mfma_fnuz", text, _takes_fnuz)
    for name in ("e4m3", "e5m2"):
        yield Primitive(
            f"mfma_{name}", f"layout of v_mfma_f32_16x16x128_f8f6f4 with {name}", _with(name, False)
        )
    for name in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1"):
        text = f"layout of v_mfma_scale_f32_16x16x128_f8f6f4 with {name}, and of its scales"
        yield Primitive(f"mfma_scale_{name}", text, _with(name, True))
    for name in ("e4m3_e2m1", "e2m3_e5m2"):
        text = f"v_mfma_scale_f32_16x16x128_f8f6f4 pairs K of {' and '.join(name.split('_'))}"
        yield Primitive(f"mfma_scale_{name}", text, _of_two_layouts)
    for name in ("e2m3", "e3m2", "e2m1"):
        text = f"layout of v_mfma_scale_f32_32x32x64_f8f6f4 with {name}, and of its scales"
        yield Primitive(f"mfma32_scale_{name}", text, _with(name, True, 32))
    yield Primitive("mfma_scale_bytes", "op_sel selects the byte of a word of scales", _is_scaled)
    yield Primitive("mfma_scale_values", "scale bytes from 2^-127 to 2^127, and NaN", _is_scaled)
    yield Primitive("mfma_nan", "NaN and Inf of an operand reach their results, and no others", _is_gemm)
    yield Primitive("mfma_denormals", "matrix instructions keep subnormal numbers", _is_gemm)
    yield Primitive("mfma_rounding", "matrix instructions round sums to nearest even", _is_gemm)
    yield Primitive("mfma_sum_order", "the order of a sum, within the error bound", _is_gemm)
    yield Primitive("f32_arithmetic", "float32 keeps subnormals and rounds to nearest even", _computes)
    yield Primitive("f32_fields", "ldexp, frexp, med3 and maxima of float32", _computes)
    yield Primitive("packed_f32", "two sums, products and fused ones at a time, as f32_arithmetic", _computes)
    yield Primitive("f32_comparisons", "nothing is less or greater than NaN, and 0 equals -0", _computes)
    yield Primitive("integer_division", "quotients by reciprocals in float32", _all_but("rms_norm"))
    yield Primitive("bits", "choices of bits and bytes, shifts, fields", _all_but(*_MOVES, "sum_groups"))
    yield Primitive("register_parts", "bytes and halves of registers as operands and results (SDWA)", _any)
    yield Primitive("f32_to_bf16", "to nearest even, subnormals and NaN kept", _stores_floats)
    yield Primitive(
        "f32_to_f16", "to nearest even, subnormals and NaN kept, Inf for overflow", _stores_floats
    )
    yield Primitive("f16_to_f32", "every value", _computes)
    for name, formats in _FP8.items():
        rests = _named("dequantize", *_ROUNDS_FP8)
        yield Primitive(name, "to nearest even and back, subnormals and NaN kept", rests, formats)
    yield Primitive(
        "cvt_scalef32_pk_fp4_f32",
        "to nearest even, x divided by the scale, bytes by op_sel",
        _named("quantize_mxfp4", "rms_norm_mx"),
        ("mxfp4_e2m1",),
    )
    for name, element in (("fp6", "e2m3"), ("bf6", "e3m2")):
        text = "32 values to nearest even, those of even and of odd index apart"
        rests = _named("quantize_mxfp6", "rms_norm_mx")
        yield Primitive(f"cvt_scalef32_2xpk16_{name}_f32", text, rests, (f"mxfp6_{element}",))
    yield Primitive("cvt_scalef32_pk_f32_fp4", "every code times the scale", _named("dequantize"))
    for name in ("fp6", "bf6"):
        yield Primitive(f"cvt_scalef32_pk32_f32_{name}", "every code times the scale", _named("dequantize"))
    for name, element in (("fp4", "e2m1"), ("fp8", "e4m3"), ("bf8", "e5m2")):
        text = "every code times the scale, 255 for NaN"
        yield Primitive(f"cvt_scalef32_pk_bf16_{name}", text, _weights(element))
    for name, element in (("fp6", "e2m3"), ("bf6", "e3m2")):
        text = "every code times the scale, 255 for NaN"
        yield Primitive(f"cvt_scalef32_pk32_bf16_{name}", text, _weights(element))
    yield Primitive("stochastic_rounding", "integer arithmetic of stochastic rounding", _named_random)
    for name in ("fp8", "bf8"):
        text = "the seed's highest bits are added, the rest is cut off"
        yield Primitive(f"cvt_sr_{name}_f32", text, _none)
    yield Primitive(
        "atomic_max",
        "the maximum of all threads of a device",
        lambda k: k.op in ("amax", "quantize_fp8", "quantize_fp8_random", "rms_norm_fp8"),
        tuple(formats[0] for formats in _FP8.values()),
    )
    yield Primitive("buffer_loads", "loads out of range give 0", _any)
    yield Primitive("buffer_stores", "stores out of range are dropped", _is_gemm)
    yield Primitive("lds_widths", "1, 2, 4, 8 and 16 bytes of LDS", _has_barriers)
    yield Primitive("memory_widths", "1, 2 and 8 bytes of memory, and no other byte is written", _any)
    yield Primitive("unaligned_rows", "16 bytes at any multiple of 4", _is_gemm)
    yield Primitive("arguments", "each argument is aligned to its own size", _any)
    yield Primitive(
        "pinned_flags",
        "the host sees what kernels wrote to pinned memory when a stream is complete, and the reverse",
        _named(*_GROUPED),
        functions="errors of offsets on devices; copies of NumPy arrays",
    )
    yield Primitive("stream_order", "copies and kernels of a stream in order; events across streams", _any)
    yield Primitive(
        "peer_access",
        "copies between devices",
        _none,
        functions="sharded products and to_device: they copy through the host then",
    )


def _named_random(kernel: Kernel) -> bool:
    return kernel.name.startswith("quantize") and "random" in kernel.name


PRIMITIVES: Mapping[str, Primitive] = {primitive.name: primitive for primitive in _primitives()}


# ---- those that failed -----------------------------------------------------------------------------


def failed(device: int) -> tuple[str, ...]:
    """The primitives that failed on a device, with the present kernels and driver."""
    found = record.failed_primitives(device)
    if not found or found.get("kernels") != code_object(hip.arch(device)).sha256:
        return ()
    return tuple(name for name in found["failed"] if name in PRIMITIVES)


def refusal(device: int, kernel: Kernel, quantized: str = "") -> str | None:
    """Why a kernel must not be used on a device; `quantized`: the format of the result, if it has scales."""
    wrong = [
        name
        for name in failed(device)
        if PRIMITIVES[name].rests(kernel) or (quantized and quantized in PRIMITIVES[name].quantized)
    ]
    if not wrong:
        return None
    return (
        f"{kernel.name} rests on {', '.join(wrong)}, which failed on device {device}; see: {COMMAND} "
        "(HIPGEMM_FAILED_PRIMITIVES=ignore uses it all the same)"
    )
