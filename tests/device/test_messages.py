"""The messages of invalid arguments, word for word: each text once, and all faults of a call at once."""

import ast
import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference, testing
from hipgemm.array import dlpack
from hipgemm.array.interop import device_kind
from hipgemm.distributed import sharding
from hipgemm.formats.elements import pack_fp4, pack_fp6, scale_byte, unpack_fp4, unpack_fp6

BF16, E4M3, E2M1 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn
E2M3 = ml_dtypes.float6_e2m3fn
E8M0, FNUZ = ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fnuz
T, V, B = TypeError, ValueError, hg.InterchangeError
ARRAY = "must be a numpy.ndarray or a hipgemm.DeviceArray"
FORMATS = "fp8_e4m3, fp8_e5m2, mxfp8_e4m3, mxfp8_e5m2, mxfp4_e2m1, mxfp6_e2m3, mxfp6_e3m2"


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


def on(*shape: int, dtype: Any = np.float32) -> Any:
    return hg.asarray(ones(*shape, dtype=dtype))


def freed() -> Any:
    x = on(2)
    x.free()
    return x


def q(*shape: int) -> Any:
    return hg.quantize_mxfp8(ones(*shape))


def signed(*shape: int, signs: int) -> Any:
    return reference.quantize_mxfp4(ones(*shape), signs=signs)


def in_parts(*shape: int, **options: Any) -> Any:
    return hg.shard(ones(*shape, dtype=BF16), [0, 0], **options)


def in_blocks(*shape: int) -> Any:
    return reference.quantize_fp8(ones(*shape), block=(1, 128))


def scaled(data: Any = None, scale: Any = None, format: Any = "mxfp8_e4m3", **options: Any) -> Any:
    data = ones(4, 64, dtype=E4M3) if data is None else data
    return hg.ScaledArray(data, ones(4, 2, dtype=E8M0) if scale is None else scale, format, **options)


def cut(x: Any, axis: int | None, devices: Any = (0, 0), **options: Any) -> Any:
    return hg.shard(x, list(devices), axis=axis, **options)


def interface(**changes: Any) -> Any:
    """An array of another library, with an attribute."""
    return SimpleNamespace(__cuda_array_interface__={**on(4).__cuda_array_interface__, **changes})


def speaker(kind: int | None = None, code: int = 2) -> Any:
    """An object that supports DLPack."""
    x = on(4)
    capsule = dlpack.export(x.ptr, 0, (4,), (4,), x.dtype, x, kind=device_kind() if kind is None else kind)
    address = dlpack._pointer(capsule, dlpack._NAME)
    ctypes.cast(address, ctypes.POINTER(dlpack._Managed)).contents.tensor.code = code
    answers = {"__dlpack_device__": lambda: (device_kind(), 0), "__dlpack__": lambda **_: capsule}
    return SimpleNamespace(**answers)


def groups(offsets: Any, axis: int = 0, x: Any = None) -> Any:
    return hg.quantize_mxfp8(ones(64, 8) if x is None else x, axis=axis, group_offsets=offsets)


A, W = ones(4, 64, dtype=BF16), ones(64, 8, dtype=BF16)  # for products

# A call, what it raises, and the text.
ROWS: list[tuple[Any, type[Exception], str]] = [
    # formats
    (lambda: pack_fp4(ones(3, dtype=E2M1)), V, "pack_fp4: x.shape[-1] must be even; got x.shape=(3,)"),
    (lambda: pack_fp4([1, 2]), T, "pack_fp4: x must be a numpy.ndarray of float4_e2m1fn; got list"),
    (lambda: unpack_fp4(np.array(1, np.uint8)), V, "unpack_fp4: x.ndim must be at least 1; got 0"),
    (lambda: pack_fp6(ones(2, 70, dtype=E2M3)), V,
     "pack_fp6: x.shape[-1] must be a multiple of 4; got x.shape=(2, 70)"),
    (lambda: pack_fp6(ones(4, dtype=E2M1)), T,
     "pack_fp6: x must be a numpy.ndarray of float6_e2m3fn or float6_e3m2fn; got float4_e2m1fn"),
    (lambda: unpack_fp6(np.zeros((2, 53), np.uint8)), V,
     "unpack_fp6: x.shape[-1] must be a multiple of 3; got x.shape=(2, 53)"),
    (lambda: unpack_fp6(np.zeros(3, np.uint8), "mxfp4_e2m1"), V,
     "unpack_fp6: format must be mxfp6_e2m3 or mxfp6_e3m2; got 'mxfp4_e2m1'"),
    (lambda: scale_byte(1, "ceil", None), V,
     "scale_byte: rule must be one of unit, floor, rceil, even; got 'ceil'"),
    (lambda: scaled(format="mxfp6"), V, f"ScaledArray: format must be one of {FORMATS}; got 'mxfp6'"),
    (lambda: scaled(axis=2), V, "ScaledArray: axis must be from -2 to 1; got 2"),
    (lambda: scaled(axis=None), T, "ScaledArray: axis must be an int; got NoneType"),
    (lambda: scaled(np.ma.array(ones(4, 64, dtype=E4M3))), T,
     f"ScaledArray: data {ARRAY}; got MaskedArray; masks are not supported: use .filled(value)"),
    (lambda: scaled(ones(4, 64, dtype=FNUZ)), T,
     "ScaledArray: data.dtype must be float8_e4m3fn for mxfp8_e4m3; got float8_e4m3fnuz; "
     "float8_e4m3fnuz is not the OCP type float8_e4m3fn: convert the values, never the bytes"),
    (lambda: scaled(on(4, 64, dtype=E2M1), on(4, 2, dtype=E8M0), format="mxfp4_e2m1"), T,
     "ScaledArray: data of mxfp4_e2m1 on a device must be packed (uint8); got float4_e2m1fn; see "
     "hipgemm.pack_fp4"),
    (lambda: scaled(ones(dtype=E4M3), 1.0, "fp8_e4m3"), V,
     "ScaledArray: data.ndim must be at least 1; got 0"),
    (lambda: hg.ScaledArray(ones(4, 64, dtype=E4M3), None, "fp8_e4m3"), T,
     "ScaledArray: scale must be float32 of shape (4, 1); got None; fp8_e4m3 needs a scale"),
    (lambda: scaled(scale=1.0), T, f"ScaledArray: scale {ARRAY}; got float"),
    (lambda: scaled(scale=ones(4, 2)), T,
     "ScaledArray: scale.dtype must be float8_e8m0fnu for mxfp8_e4m3; got float32"),
    (lambda: scaled(scale=ones(4, 3, dtype=E8M0)), V,
     "ScaledArray: scale.shape must be (4, 2); got (4, 3); data has shape (4, 64) in elements, axis=-1"),
    (lambda: scaled(scale=1e39, format="fp8_e4m3"), V, "ScaledArray: scale must fit float32; got 1e+39"),
    (lambda: scaled(on(4, 64, dtype=E4M3)), T,
     "ScaledArray: data and scale must be on the same device; got data on device 0, scale on the host; see "
     "hipgemm.asarray"),
    (lambda: scaled(hadamard=True), V, "ScaledArray: hadamard=True is only for mxfp4_e2m1; got mxfp8_e4m3"),
    (lambda: scaled(ones(4, 40, dtype=E2M1), format="mxfp4_e2m1", hadamard=True), V,
     "ScaledArray: the length along axis -1 must be a multiple of 16 with hadamard=True; got 40"),
    (lambda: q(64).mT, V, "ScaledArray.mT: ndim must be at least 2; got 1"),
    (lambda: in_blocks(2, 4, 128).T, V,
     "ScaledArray.T: ndim must be 2 with block; got 3; see ScaledArray.mT"),
    (lambda: q(4, 64).reshape(5, 64), V, "ScaledArray.reshape: shape must hold 256 elements; got (5, 64)"),
    (lambda: q(4, 64).reshape(2, 128), V,
     "ScaledArray.reshape: the last axis must be that of the scales, and keep its length 64; got (2, 128) "
     "from "
     "(4, 64), "
     "axis=-1, scale.shape=(4, 2); or quantize after reshaping"),
    # operands of products
    (lambda: hg.matmul([[1.0]], W), T,
     f"matmul: a {ARRAY}; got list; convert it with numpy.asarray"),
    (lambda: hg.matmul(A.astype(np.float32), W), T,
     "matmul: a.dtype must be bfloat16 or float16; got float32; convert with a.astype(ml_dtypes.bfloat16), "
     "or quantize with hipgemm.quantize_fp8, quantize_mxfp8, quantize_mxfp6 or quantize_mxfp4"),
    (lambda: hg.matmul(A[0], W), V, "matmul: a.ndim must be at least 2; got 1; a.shape=(64,)"),
    (lambda: hg.matmul(A, W[:32]), V,
     "matmul: a.shape[1] (K) must equal b.shape[0] (K); got 64 and 32; a.shape=(4, 64), b.shape=(32, 8)"),
    (lambda: hg.matmul(ones(2, 4, 64, dtype=BF16), ones(3, 64, 8, dtype=BF16)), V,
     "matmul: the axes of a and b before the last two must broadcast; got (2,) and (3,); "
     "a.shape=(2, 4, 64), b.shape=(3, 64, 8)"),
    (lambda: hg.matmul(A, W, ones(4, 9, dtype=BF16)), V,
     "matmul: out.shape must be (M, N)=(4, 8); got (4, 9); a.shape=(4, 64), b.shape=(64, 8)"),
    (lambda: hg.matmul(A, W.astype(np.float16)), T,
     "matmul: a.dtype and b.dtype must be the same; got bfloat16 and float16"),
    (lambda: hg.matmul(q(4, 64), W), T,
     "matmul: a and b must have the same kind of format (both fp8, both MX, or neither; b alone may be "
     "quantized); got mxfp8_e4m3 and bf16"),
    (lambda: hg.matmul(A.astype(np.float16), q(8, 64).T), hg.UnsupportedError,
     "matmul: a.dtype must be bfloat16 if b alone is quantized; got float16; "
     "convert it: a.astype(ml_dtypes.bfloat16)"),
    (lambda: hg.matmul(A, hg.quantize_mxfp4(ones(8, 64)).T), V,
     "matmul: b must not have the Hadamard transform if a is not quantized; got b.hadamard=True; "
     "quantize_mxfp4 has hadamard=False"),
    (lambda: hg.matmul(q(4, 64), q(64, 32)), V,
     "matmul: b must be blocked along K, its axis -2; got axis=-1; "
     "quantize with quantize_mxfp8(x, axis=-2), or quantize_mxfp8(x.T).T"),
    (lambda: hg.matmul(hg.quantize_mxfp4(ones(4, 64)), hg.quantize_mxfp4(ones(8, 64), hadamard=False).T), V,
     "matmul: a and b must both have the Hadamard transform, or neither: otherwise it does not cancel; "
     "got a.hadamard=True, b.hadamard=False; quantize_mxfp4 has hadamard=False"),
    (lambda: hg.matmul(signed(4, 64, signs=1), signed(8, 64, signs=2).T), V,
     "matmul: a and b must have the same random signs: otherwise they do not cancel; "
     "got a.signs=1, b.signs=2"),
    (lambda: hg.matmul(in_blocks(4, 128).T, in_blocks(4, 128)), V,
     "matmul: 2 faults:\n  - a must have blocks of 128 along K, its axis -1; got block=(128, 1); "
     "quantize with quantize_fp8(x, block=(1, 128))\n"
     "  - b must have blocks of 128 along K, its axis -2; got block=(1, 128); "
     "quantize with quantize_fp8(x.T, block=(1, 128)).T"),
    (lambda: hg.matmul(groups(np.array([0, 64])).T, q(8, 64).T), V,
     "matmul: a must be quantized without group_offsets; got 1 groups"),
    (lambda: hg.matmul(A, W, bias=ones(3)), V, "matmul: bias.shape must be (N,)=(8,); got (3,)"),
    (lambda: hg.matmul(hg.asarray(A), hg.asarray(W), bias=on(16)[::2]), V,
     "matmul: bias on a device must be contiguous; got strides=(8,)"),
    (lambda: hg.matmul(A, W, alpha=on(1)), V, "matmul: alpha on a device must be 0-d; got alpha.shape=(1,)"),
    (lambda: hg.matmul(A, W, alpha=1j), T,
     "matmul: alpha must be a real number or a 0-d float32 DeviceArray; got complex"),
    (lambda: hg.matmul(A, W, alpha=1e39), V, "matmul: alpha must fit float32; got 1e+39"),
    (lambda: hg.matmul(A, hg.asarray(W)), T,
     "matmul: a, b must be on the same device; got a on the host, b on device 0; "
     "copy host arrays with hipgemm.asarray(x, device=0)"),
    (lambda: hg.matmul(A, W, np.broadcast_to(ones(1, 1, dtype=BF16), (4, 8))), V,
     "matmul: 2 faults:\n  - out must be writeable; got a read-only array\n"
     "  - out must not overlap itself; got shape (4, 8), strides (0, 0)"),
    (lambda: hg.matmul(A[:, :4], W[:4, :4], A[:, :4]), V,
     "matmul: out must not overlap a; got arrays that share memory"),
    # groups
    (lambda: groups(np.array([0, 64]), -1), V,
     "quantize_mxfp8: x must be a matrix and axis 0 with group_offsets; got x.shape=(64, 8), axis=-1"),
    # quantizers
    (lambda: hg.quantize_fp8([[1.0]]), T,
     f"quantize_fp8: x {ARRAY}; got list; convert it with numpy.asarray"),
    (lambda: hg.quantize_fp8(ones(2, dtype=int)), T,
     "quantize_fp8: x.dtype must be bfloat16, float16 or float32; got int64; convert with "
     "x.astype(numpy.float32)"),
    (lambda: hg.quantize_fp8(ones(2), -1.0), V,
     "quantize_fp8: amax must be finite and not negative; got -1.0"),
    (lambda: hg.quantize_fp8(ones(2), np.float32([-1]), axis=0), V,
     "quantize_fp8: all of amax must be finite and not negative; got -1.0"),
    (lambda: hg.Stream().record(3), T, "Stream.record: event must be an Event or None; got int"),
    (lambda: hg.ScaledArray(ones(4, dtype=E4M3), "1", "fp8_e4m3"), T,
     "ScaledArray: scale must be a real number or a float32 array; got str"),
    (lambda: hg.quantize_fp8(ones(2), "1"), T,
     "quantize_fp8: amax must be a number, a float32 array or an AmaxState; got str"),
    (lambda: hg.quantize_fp8(ones(2), ones(3)), V, "quantize_fp8: amax.shape must be (); got (3,)"),
    (lambda: hg.quantize_fp8(ones(2), ones(dtype=float)), T,
     "quantize_fp8: amax.dtype must be float32; got float64"),
    (lambda: hg.quantize_fp8(ones(2), hg.AmaxState(), axis=-1), V,
     "quantize_fp8: axis must be None with an AmaxState; got -1"),
    (lambda: hg.quantize_fp8(ones(2), eps=-1), V,
     "quantize_fp8: eps must be finite and not negative; got -1"),
    (lambda: hg.quantize_fp8(ones(2), eps=10**400), V,
     f"quantize_fp8: eps must be finite and not negative; got {str(10**400)[:197]}..."),
    (lambda: hg.quantize_fp8(ones(2), eps="0"), T, "quantize_fp8: eps must be a real number; got str"),
    (lambda: hg.quantize_fp8(ones(4, 128), block=(2, 2)), V,
     "quantize_fp8: block must be (1, 128) or (128, 128); got (2, 2)"),
    (lambda: hg.quantize_fp8(ones(4, 128), 2.0, axis=0, block=(1, 128)), V,
     "quantize_fp8: 2 faults:\n  - axis must be omitted with block; got 0\n"
     "  - amax must be omitted with block; got 2.0"),
    (lambda: hg.AmaxState("1"), T, "AmaxState: value must be a number or None; got str"),
    (lambda: hg.rms_norm(ones(4, 8), ones(7)), V, "rms_norm: weight.shape must be (N,)=(8,); got (7,)"),
    (lambda: hg.rms_norm(ones(4, 8), None), T,
     "rms_norm: weight must be a numpy.ndarray or a hipgemm.DeviceArray; got NoneType"),
    (lambda: hg.rms_norm(ones(4, 8), ones(8), residual=ones(8)), V,
     "rms_norm: residual.shape must be (4, 8); got (8,)"),
    (lambda: hg.rms_norm(ones(4, 8), ones(8), residual=hg.asarray(ones(4, 8))), T,
     "rms_norm: residual must be on the host like x; got device 0"),
    (lambda: hg.rms_norm(ones(4, 8), ones(8), out_format="fp8_e4m3"), V,
     "rms_norm: out_amax must be given for fp8; got out_amax=None"),
    (lambda: hg.rms_norm(ones(4, 8), ones(8), out_format="fp8_e4m3", out_amax=hg.AmaxState()), V,
     "rms_norm: out_amax must have a value: AmaxState(value), or used by quantize_fp8 before; got none yet"),
    (lambda: hg.rms_norm(ones(4, 8), ones(8), out_format="mxfp8_e4m3", out_amax=hg.AmaxState(1)), V,
     "rms_norm: out_amax must be omitted but for fp8; got AmaxState(device=0)"),
    (lambda: hg.softmax(ones(4, 8), scale=float("inf")), V, "softmax: scale must be finite; got inf"),
    (lambda: hg.softmax(ones(4, 8), axis=0, causal=True), V,
     "softmax: axis must be the last one with causal; got 0"),
    (lambda: hg.softmax(ones(8), causal=True), V,
     "softmax: x.ndim must be at least 2; got 1; x.shape=(8,)"),
    (lambda: hg.zeros(3, np.float32) + hg.zeros(3, np.float16), T,
     "DeviceArray +: y.dtype must be float32, that of x; got float16; convert one with .astype"),
    (lambda: hg.zeros(3, np.float32) * np.ones(3, np.float32), T,
     "DeviceArray *: y must be a DeviceArray or a Python number; got ndarray; copy it with hipgemm.asarray"),
    (lambda: hg.zeros(3, np.float32) * hg.zeros(2, np.float32), V,
     "DeviceArray *: x.shape and y.shape must broadcast; got (3,) and (2,)"),
    (lambda: hg.zeros(3, np.int32) + 1, T,
     "DeviceArray +: x.dtype must be bfloat16, float16 or float32; got int32"),
    (lambda: hg.zeros(3, np.float32).astype(np.int32), T,
     "astype: dtype must be bfloat16, float16 or float32; got int32"),
    (lambda: hg.zeros((2, 3), np.float32).__setitem__(0, np.zeros(2)), V,
     "DeviceArray: value.shape must broadcast to (3,); got (2,)"),
    (lambda: hg.quantize_mxfp8(ones(64), scaling="ceil"), V,
     "quantize_mxfp8: scaling must be one of unit, floor, rceil, even; got 'ceil'"),
    (lambda: hg.quantize_mxfp4(ones(4, 40)), V,
     "quantize_mxfp4: x.shape[-1] must be a multiple of 16 for the Hadamard transform; got 40; pass "
     "hadamard=False"),
    (lambda: hg.quantize_mxfp4(ones(64), hadamard=1), T,
     "quantize_mxfp4: hadamard must be True or False; got 1"),
    (lambda: hg.quantize_both(ones(40), "mxfp8_e4m3"), V,
     "quantize_both: x.ndim must be 2; got 1; x.shape=(40,)"),
    (lambda: hg.quantize_both(ones(4, 40), "mxfp8_e4m3", hadamard=False), V,
     "quantize_both: hadamard must be omitted for mxfp8_e4m3; got False"),
    (lambda: hg.dequantize(ones(2)), T, "dequantize: q must be a ScaledArray; got ndarray"),
    (lambda: hg.pack_mx_scales(ones(4, 4)), T,
     "pack_mx_scales: scale.dtype must be float8_e8m0fnu or uint8; got float32"),
    (lambda: hg.pack_mx_scales(ones(4, dtype=E8M0)), V,
     "pack_mx_scales: scale.ndim must be 2; got scale.shape=(4,)"),
    # functions that compute on the host
    (lambda: reference.matmul(ones(4, 64, dtype="U1"), W[0]), T,
     "matmul: 2 faults:\n  - a.dtype must be of real numbers; got <U1\n"
     "  - b.ndim must be at least 2; got 1; b.shape=(8,)"),
    (lambda: reference.matmul(A, W, bias=ones(1, 8)), V, "matmul: bias.ndim must be 1; got 2"),
    (lambda: reference.quantize_mxfp8(ones(4, 64), rounding="stochastic"), V,
     "quantize_mxfp8: seed must be given with rounding='stochastic'; got None"),
    (lambda: reference.quantize_mxfp8(ones(4, 64), rounding="stochastic", seed=2**64), V,
     "quantize_mxfp8: seed must be from 0 to 2**64 - 1; got 18446744073709551616"),
    (lambda: reference.quantize_mxfp4(ones(4, 64), hadamard=False, signs=3), V,
     "quantize_mxfp4: signs must be None without the Hadamard transform; got 3"),
    (lambda: testing.gamma(-1), V, "gamma: n must be 0 or more, and below 2**31; got -1"),
    (lambda: testing.exact_grid((), np.random.default_rng(0), dtype="U1"), T,
     "exact_grid: 2 faults:\n  - shape must have an axis or more; got ()\n"
     "  - dtype must be a dtype of real numbers; got 'U1'"),
    (lambda: testing.random_matrix((4, -1), np.random.default_rng(0)), V,
     "random_matrix: shape must have lengths of 0 or more, and below 2**31 elements; got (4, -1)"),
    # arrays
    (lambda: hg.empty("ab", np.int8), T, "empty: shape must be an int or a sequence of ints; got 'ab'"),
    (lambda: hg.empty(-1, np.int8), V, "empty: shape must not be negative; got (-1,)"),
    (lambda: hg.zeros(2, "zz"), T, "zeros: dtype must be a dtype or the name of one; got 'zz'"),
    (lambda: hg.zeros(2, ">f4"), T, "zeros: dtype must be a plain type in native byte order; got >f4"),
    (lambda: hg.zeros(2, "f4", device="0"), T, "zeros: device must be an int; got str"),
    (lambda: hg.zeros(2, "f4", device=99), V, "zeros: device must be 0 to .*; got 99"),
    (lambda: hg.zeros(2, "f4", stream="x"), T,
     "zeros: stream must be None, a stream handle, or convertible to one by int(); got 'x'"),
    (lambda: hg.zeros(2, "f4", stream=2), V,
     "zeros: stream must be the same for all threads; got the per-thread stream (2); create a "
     "hipgemm.Stream"),
    (lambda: hg.zeros(2, "f4", stream=12345), V,
     "zeros: stream must exist; got the unknown handle 0x3039; was it destroyed?"),
    (lambda: hg.asarray([1.0]), T,
     "asarray: x must be a numpy.ndarray, a DeviceArray, or an array that supports DLPack; got list; "
     "convert it with numpy.asarray"),
    (lambda: hg.asarray(np.ma.array(ones(2))), T,
     "asarray: x must be a plain numpy.ndarray; got MaskedArray; masks are not supported: use "
     ".filled(value)"),
    (lambda: hg.pack_fp4(np.ma.array(ones(2))), T,
     "pack_fp4: arrays must have no mask; got MaskedArray; masks are not supported: use .filled(value)"),
    (lambda: hg.asarray(np.ones(2, "F"), "f4"), T,
     "asarray: x.dtype must be real to convert to float32; got complex64"),
    (lambda: hg.asarray(ones(2), copy=False), V, "asarray: a NumPy array can only be copied; got copy=False"),
    (lambda: hg.asarray(q(2, 64), copy=False), V,
     "asarray: a ScaledArray on the host can only be copied; got copy=False"),
    (lambda: hg.asarray(q(2, 64), np.float32), T,
     "asarray: dtype must be omitted for a ScaledArray; got <class 'numpy.float32'>"),
    (lambda: hg.asarray(ones(2), E4M3), T,
     "asarray: x.dtype must be float8_e4m3fn: a conversion needs a scale; got float32; "
     "see hipgemm.quantize_fp8, quantize_mxfp8, quantize_mxfp6, quantize_mxfp4"),
    (lambda: hg.asarray(freed()), V, "asarray: x must be in memory; got an array that was freed"),
    (lambda: hg.zeros(2**62, "f4"), V,
     "zeros: shape must be one of fewer than 2**63 bytes; got (4611686018427387904,)"),
    (lambda: hg.asarray(on(2), np.float16), T,
     "asarray: dtype must be float32, the dtype of the device array; got float16"),
    (lambda: on(4, 6)[:, :2].reshape(-1), V,
     "DeviceArray.reshape: axes can only be merged if their strides allow it without a copy; got shape (4, "
     "2), strides (24, "
     "4)"),
    (lambda: on(4, 6).T.view(np.uint8), V,
     "DeviceArray.view: the last axis must be contiguous to change the item size to 1; got strides=(4, "
     "24)"),
    (lambda: on(4, 3).view(np.float64), V,
     "DeviceArray.view: the last axis must be a multiple of 8 bytes; got 12"),
    (lambda: on(6).view("V3"), V,
     "DeviceArray.view: an element of float32 must hold whole elements of the new dtype; got |V3"),
    (lambda: on(4).reshape(), T, "DeviceArray.reshape: the new shape must be given; got no argument"),
    (lambda: on(4)[True], T, "DeviceArray: an index must be an int, a slice, None or ...; got bool"),
    (lambda: on(4).view(np.uint8)[1:].view(np.int32), V,
     "DeviceArray.view: the last axis must be a multiple of 4 bytes; got 15"),
    (lambda: on(4).view(np.uint8)[1:5].view(np.int32), V,
     "DeviceArray.view: int32 elements must be aligned to 4 bytes; got address 0x.*, strides (4,)"),
    (lambda: on(5, 7)[0, 0, 0], IndexError, "DeviceArray: at most 2 indices; got 3"),
    (lambda: on(5, 7)["a"], T, "DeviceArray: an index must be an int, a slice, None or ...; got str"),
    (lambda: on(3).get([0.0]), T,
     "get: out must be a numpy.ndarray; got list; convert it with numpy.asarray"),
    (lambda: on(3).get(np.zeros(4)), T,
     "get: 2 faults:\n  - out.dtype must be float32; got float64\n  - out.shape must be (3,); got (4,)"),
    (lambda: on(2).__dlpack__(dl_device=(8, 0)), B,
     "__dlpack__: dl_device must be (.*, 0) or the host, (1, 0); got (8, 0)"),
    (lambda: on(2).__dlpack__(dl_device=(1, 0), copy=False), B,
     "__dlpack__: an export to the host needs a copy; got copy=False"),
    (lambda: on(2, dtype=BF16).__cuda_array_interface__, B,
     "__cuda_array_interface__: dtype must be a NumPy dtype; got bfloat16; use DLPack, or .view(np.uint8)"),
    (lambda: on(2, dtype=np.complex64).__dlpack__(), B,
     "__dlpack__: dtype must be one that DLPack has; got complex64"),
    (lambda: dlpack.export(4096, 0, (2,), (6,), np.dtype("f4"), None), B,
     "__dlpack__: strides must be whole elements; got (6,)"),
    (lambda: hg.asarray(interface(typestr="|V3")), B,
     "asarray: typestr must be a native NumPy type; got |V3"),
    (lambda: hg.asarray(interface(mask=1)), B,
     "asarray: the array must have no mask; got one"),
    (lambda: hg.asarray(speaker(kind=1)), B,
     "asarray: the capsule must hold .* device's memory (DLPack type .*); got type 1"),
    (lambda: hg.asarray(speaker(code=77)), B,
     "asarray: the DLPack type must be a NumPy or ml_dtypes type; got code 77, 32 bits, 1 lanes"),
    # streams, events, memory
    (lambda: hg.Stream().wait(3), T, "Stream.wait: other must be an Event or a Stream; got int"),
    (lambda: hg.Event().elapsed(1.0), T,
     "Event.elapsed: 2 faults:\n  - end must be an Event; got float\n"
     "  - the first event must have been recorded; got one that was not"),
    (lambda: hg.Event().record().elapsed(hg.Event(timing=False).record()), V,
     "Event.elapsed: end event must have timing=True; got timing=False"),
    (lambda: hg.limit_memory("1G", cache=-1, device="0"), T,
     "limit_memory: 3 faults:\n  - device must be an int; got str\n"
     "  - limit must be a number of bytes or None; got str\n  - cache must not be negative; got -1"),
    # sharded arrays
    (lambda: cut([1, 2], 0), T,
     "shard: x must be a numpy.ndarray, a DeviceArray or a ScaledArray; got list; convert it with "
     "numpy.asarray"),
    (lambda: cut(A, None, sizes=(2, 2)), V,
     "shard: sizes must be None for axis=None; got (2, 2)"),
    (lambda: cut(A, 0, sizes=(1, 2)), V, "shard: sizes must be 2 lengths that add up to 4; got [1, 2]"),
    (lambda: cut(A, 0, sizes=3), T, "shard: sizes must be a sequence of ints; got 3"),
    (lambda: cut(q(4, 64), 1, sizes=(16, 48)), V,
     "shard: parts must begin at multiples of 32, the block of mxfp8_e4m3; got [0, 16, 64]"),
    (lambda: cut(A, 0, [99]), V, "shard: devices must be one or more of 0 to .*; got [99]"),
    (lambda: hg.shard(A, 99, axis=0), V, "shard: devices must be 1 to .*; got 99"),
    (lambda: hg.shard(A, "all", axis=0), T,
     "shard: devices must be a sequence of ints, an int, or an mpi4py communicator; got 'all'"),
    (lambda: cut(A, 0, timeout="1"), T, "shard: timeout must be a number of seconds; got str"),
    (lambda: cut(A, 0, timeout=0), V, "shard: timeout must be above 0 s; got 0"),
    (lambda: sharding.assemble([hg.quantize_fp8(on(2, 4) * x) for x in (1.0, 2.0)], axis=0).get(), V,
     "ShardedArray.get: parts must have the same scales; got ShardedArray(shape=(4, 4), dtype=float8_e4m3fn, "
     "axis=-2, devices=[0, 0]); get each part"),
    (lambda: sharding.assemble(on(2), axis=0), T,
     "assemble: parts must be a list or tuple of one or more arrays; got DeviceArray"),
    (lambda: sharding.assemble([on(2), ones(2)], axis=0), T,
     "assemble: each part must be on a device; got one on the host"),
    (lambda: sharding.assemble([on(2, 3), on(2, 4)], axis=0), V,
     "assemble: all parts must be equal in format and shape, except their length along axis; got float32 "
     "(any, 3) and float32 "
     "(any, 4)"),
    (lambda: sharding.assemble([on(2)], axis=0, comm=3), T,
     "assemble: comm must be an mpi4py communicator or None; got int"),
    (lambda: hg.sharded_matmul(A, W, split="x"), V,
     "sharded_matmul: split must be m, n, k or batch; got 'x'"),
    (lambda: hg.sharded_matmul([1], W, split="m"), T,
     "sharded_matmul: a must be a ShardedArray, numpy.ndarray, DeviceArray or ScaledArray; got list; "
     "convert it with numpy.asarray"),
    (lambda: hg.sharded_matmul(A[0], W, split="m"), V, "sharded_matmul: a.ndim must be 2 or 3; got 1"),
    (lambda: hg.sharded_matmul(A, W, split="batch"), V,
     "sharded_matmul: a.ndim must be 3 for split=batch; got 2"),
    (lambda: hg.sharded_matmul(np.stack([A] * 3), np.stack([W] * 2), split="batch"), V,
     "sharded_matmul: a.shape[0] must equal b.shape[0] for split=batch; got 3 and 2"),
    (lambda: hg.sharded_matmul(A, W[None], split="k"), V,
     "sharded_matmul: b.ndim must be 2 for split=k; got 3"),
    (lambda: hg.sharded_matmul(cut(A, 1), W, split="m"), V,
     "sharded_matmul: a must be split along axis -2 for split=m; got split along axis -1"),
    (lambda: hg.sharded_matmul(cut(A, 1, sizes=(24, 40)), cut(W, 0), split="k"), V,
     "sharded_matmul: a and b must be split at the same offsets; got (0, 24, 64) and (0, 32, 64); "
     "pass sizes= to hipgemm.shard"),
    (lambda: hg.sharded_matmul(cut(A, 0), cut(W, None, [0]), split="m"), V,
     "sharded_matmul: a and b must have the same devices in the same order, or the same communicator; got "
     "ShardedArray(shape=(4, 64), dtype=bfloat16, axis=-2, devices=[0, 0]) and "
     "ShardedArray(shape=(64, 8), dtype=bfloat16, axis=None, devices=[0])"),
    (lambda: hg.sharded_matmul(cut(A, 0), W, split="m", devices=[0]), V,
     "sharded_matmul: devices must be those of the sharded operand, or None; got [0] and "
     "ShardedArray(shape=(4, 64), dtype=bfloat16, axis=-2, devices=[0, 0])"),
    (lambda: hg.sharded_matmul(cut(A, 0), W, cut(ones(4, 8), 0, sizes=(1, 3)), split="m"), V,
     "sharded_matmul: out must be sharded as the result, at (0, 2, 4) of axis -2; got ShardedArray("
     "shape=(4, 8), dtype=float32, axis=-2, devices=[0, 0])"),
    (lambda: hg.sharded_matmul(cut(A, 0), W, split="m", aux=cut(ones(8, 4), 1).T), V,
     "sharded_matmul: parts of aux must be contiguous; got ShardedArray(shape=(4, 8), dtype=float32, "
     "axis=-2, devices=[0, 0])"),
    (lambda: hg.sharded_matmul(cut(A, None), cut(W, 1), split="n", out_format="mxfp8_e4m3"), V,
     "sharded_matmul: each part of b but the last must have a multiple of 32 columns for blocks of 32; got "
     "(0, 4, 8)"),
    (lambda: hg.sharded_matmul(A, W, split="m", alpha=hg.asarray(np.float32(1))), T,
     "sharded_matmul: alpha must be on the host; got an array on device 0"),
    # several at once
    (lambda: hg.quantize_mxfp8(ones(4, 64, dtype=int), axis="a", scaling="none"), T,
     "quantize_mxfp8: 3 faults:\n"
     "  - x.dtype must be bfloat16, float16 or float32; got int64; convert with x.astype(numpy.float32)\n"
     "  - axis must be an int; got str\n"
     "  - scaling must be one of unit, floor, rceil, even; got 'none'"),
    (lambda: hg.quantize_fp8(ones(4, 64, dtype=int), ones(2), axis=5, eps=-1.0, format="fp9", stream="x"), T,
     "quantize_fp8: 5 faults:\n"
     "  - format must be one of fp8_e4m3, fp8_e5m2; got 'fp9'\n"
     "  - x.dtype must be bfloat16, float16 or float32; got int64; convert with x.astype(numpy.float32)\n"
     "  - axis must be from -2 to 1; got 5\n"
     "  - eps must be finite and not negative; got -1.0\n"
     "  - stream must be None, a stream handle, or convertible to one by int(); got 'x'"),
    (lambda: hg.quantize_both(None, "mxfp8_e4m3", scaling="x", hadamard=True), T,
     f"quantize_both: 3 faults:\n  - x {ARRAY}; got NoneType\n"
     "  - scaling must be one of unit, floor, rceil, even; got 'x'\n"
     "  - hadamard must be omitted for mxfp8_e4m3; got True"),
    (lambda: hg.zeros(-1, "zz", device=True, stream="x"), T,
     "zeros: 4 faults:\n  - shape must not be negative; got (-1,)\n"
     "  - dtype must be a dtype or the name of one; got 'zz'\n  - device must be an int; got bool\n"
     "  - stream must be None, a stream handle, or convertible to one by int(); got 'x'"),
    (lambda: hg.asarray(ones(2), "zz", device=1.5, copy=False), T,
     "asarray: 3 faults:\n  - device must be an int; got float\n"
     "  - dtype must be a dtype or the name of one; got 'zz'\n  - a NumPy array can only be copied; got "
     "copy=False"),
    (lambda: hg.shard(A, [99], axis="a", timeout=-1), T,
     "shard: 3 faults:\n  - timeout must be above 0 s; got -1\n  - devices must be one or more of 0 to "
     ".*; got [99]\n"
     "  - axis must be an int; got str"),
    (lambda: hg.sharded_matmul(A.astype("f4"), W[:32], split="x", bias=ones(3), dtype="i1", alpha="1"), T,
     "sharded_matmul: 6 faults:\n  - split must be m, n, k or batch; got 'x'\n"
     "  - a.dtype must be bfloat16 or float16; got float32; convert with a.astype(ml_dtypes.bfloat16), "
     "or quantize with hipgemm.quantize_fp8, quantize_mxfp8, quantize_mxfp6 or quantize_mxfp4\n"
     "  - a.shape[1] (K) must equal b.shape[0] (K); got 64 and 32; a.shape=(4, 64), b.shape=(32, 8)\n"
     "  - dtype must be bfloat16, float16 or float32; got int8\n"
     "  - alpha must be a real number or a 0-d float32 DeviceArray; got str\n"
     "  - bias.shape must be (N,)=(8,); got (3,)"),
    (lambda: scaled(ones(4, 64, dtype=np.int8), ones(4, 2), axis=7, hadamard=True), T,
     "ScaledArray: 4 faults:\n  - data.dtype must be float8_e4m3fn for mxfp8_e4m3; got int8\n"
     "  - axis must be from -2 to 1; got 7\n"
     "  - scale.dtype must be float8_e8m0fnu for mxfp8_e4m3; got float32\n"
     "  - hadamard=True is only for mxfp4_e2m1; got mxfp8_e4m3"),
    # slices of quantized arrays, files, stages
    (lambda: hg.load("a\0b"), V, "load: path must have no null character; got 'a\\x00b'"),
    (lambda: hg.load("a", names="w"), T, "load: names must be a sequence of str; got 'w'"),
    (lambda: hg.matmul(signed(4, 64, signs=1)[:, :32], signed(8, 64, signs=1)[:, 32:].T), V,
     "matmul: a and b must begin at the same element of the arrays with random signs; got 0 and 32"),
    (lambda: hg.grouped_matmul(ones(4, 32, dtype=BF16), ones(2, 32, 8, dtype=BF16), np.array([0, 1, 4]),
                               bias=ones(3, 8)), V,
     "grouped_matmul: bias.shape must be (G, N)=(2, 8); got (3, 8)"),
    (lambda: hg.matmul(on(4, 32, dtype=BF16), on(32, 8, dtype=BF16), aux=on(8, 4).T), V,
     "matmul: aux on a device must have contiguous rows; got strides=(4, 16)"),
    (lambda: q(4, 64)[:, 1], V,
     "ScaledArray: axis 1, along which elements share a scale, must stay: pass a slice; got 1"),
    (lambda: q(4, 64)[:, 16:], V,
     "ScaledArray: a slice of axis 1 must consist of whole blocks of 32; got 16:"),
    (lambda: groups(np.array([0, 2, 4]))[1:], V,
     "ScaledArray: axis 0, along which the array has groups, must stay whole; got 1:"),
    (lambda: in_blocks(4, 256)[0], V,
     "ScaledArray: axis 0 must stay, since blocks have two axes: pass a slice; got 0"),
    (lambda: reference.quantize_fp8(ones(4, 256), axis=None)[0, 0], V,
     "ScaledArray: at least one axis must stay; got 2 ints: pass a slice"),
    (lambda: hg.sharded_matmul(ones(4, 32, dtype=BF16), ones(32, 5, dtype=BF16), split="m", devices=[0, 0],
                               glu="halves"), V, "sharded_matmul: N must be even with glu; got 5"),
    (lambda: hg.sharded_matmul(ones(4, 32, dtype=BF16), ones(32, 8, dtype=BF16), split="n", devices=[0, 0],
                               glu="halves"), hg.UnsupportedError,
     "sharded_matmul: glu must be interleaved for split=n, whose parts hold gates with their ups; "
     "got halves"),
    (lambda: hg.sharded_matmul(in_parts(4, 32, axis=None), in_parts(32, 8, axis=1, sizes=[3, 5]), split="n",
                               glu="interleaved"), V,
     "sharded_matmul: each part of b must have an even number of columns with glu; got (0, 3, 8)"),
    (lambda: hg.sharded_matmul(in_parts(4, 32, axis=0), in_parts(32, 8, axis=None), split="m",
                               residual=in_parts(4, 8, axis=1)), V,
     "sharded_matmul: residual must be sharded as the result, at (0, 2, 4) of axis -2; "
     "got ShardedArray(shape=(4, 8), dtype=bfloat16, axis=-1, devices=[0, 0])"),
    (lambda: hg.sharded_matmul(in_parts(4, 32, axis=0), in_parts(32, 8, axis=None), split="m",
                               residual=sharding.assemble([on(2, 16)[:, ::2]] * 2, axis=0)), V,
     "sharded_matmul: parts of residual must be contiguous; "
     "got ShardedArray(shape=(4, 8), dtype=float32, axis=-2, devices=[0, 0])"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "text"), ROWS, ids=[text.split("\n")[0][:70] for _, _, text in ROWS]
)
def test_message(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    if isinstance(caught.value, hg.KernelNotFoundError) and kind is not hg.KernelNotFoundError:
        pytest.skip(f"needs the matrix kernels: {caught.value}")
    assert type(caught.value) is kind
    pattern = re.escape(text).replace(r"\.\*", ".*")  # for numbers that depend on the machine
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)


# ---- each text is unique, and is tested

# Texts of other tables, or that need more devices, libraries or ranks.
ELSEWHERE = {
    "scales of parts of K must differ": ("test_scale_range.py", "scales of parts of K must differ"),
    "group_offsets[0] must be 0": ("../cpu/test_groups.py", "group_offsets[0] must be 0; got"),
    "group_offsets must not decrease": ("../cpu/test_groups.py", "must not decrease; got group_offsets[3]=7"),
    "group_offsets must be at most {}": (
        "../cpu/test_groups.py",
        "must be at most 100, the number of rows; got",
    ),
    "group_offsets.dtype must be": (
        "../cpu/test_groups.py",
        "group_offsets.dtype must be int32; got float32",
    ),
    "group_offsets.shape must be": (
        "../cpu/test_groups.py",
        "group_offsets.shape must be (G+1,); got (1, 2)",
    ),
    "group_offsets must be multiples of {}": ("test_grouped.py", "must be multiples of 32"),
    "{} must be on {} like {}": ("test_devices.py", "amax must be on device 0 like x; got device 1"),
    "stream must be a stream of device {}": (
        "test_devices.py",
        "stream must be a stream of device 1, where the",
    ),
    "function must be callable": ("test_graphs.py", "Graph: function must be callable; got int"),
    "function must only make {}": ("test_graphs.py", "Graph: .* the stream that it is given"),
    "function must make calls": (
        "test_graphs.py",
        "Graph: function must make calls on the stream .*; got none",
    ),
    "the arrays of the captured calls must": ("test_graphs.py", "the arrays .* must still be in memory"),
    "both events must belong to the same device": (
        "test_devices.py",
        "both events must belong to the same device; got 0 and 1",
    ),
    "can only be copied to device": ("test_devices.py", "can only be copied to device 1"),
    "the array must be in the memory of": ("test_interchange.py", "must be in the memory of"),
    "the array's shape must not": ("test_interchange.py", "shape must not be negative"),
    "the array's strides must be": ("test_interchange.py", "strides must be as many as its axes"),
    "the array's address must not": ("test_interchange.py", "address must not be null"),
    "the array's bytes must be": ("test_interchange.py", "bytes must be in 64-bit addresses"),
    "the array's stream must be": ("test_interchange.py", "stream must be an int or None"),
    "__dlpack_device__ must return": ("test_interchange.py", "__dlpack_device__ must return two ints; got"),
    "the capsule's address must": ("test_interchange.py", "must be in the memory of its device 0; got"),
    "the capsule must have 0 to": ("test_interchange.py", "must have 0 to 64 extents; got none"),
    "__cuda_array_interface__ must be": ("test_interchange.py", "__cuda_array_interface__ must be a dict"),
    "__cuda_array_interface__ must have": ("test_interchange.py", "typestr, data, version; got none of"),
    "shape must be a tuple of ints": ("test_interchange.py", "shape must be a tuple of ints"),
    "strides must be None or a tuple": ("test_interchange.py", "strides must be None or a tuple of ints"),
    "data must be a tuple of": ("test_interchange.py", "data must be a tuple of an int and a bool"),
    "the array must be on {} device": ("test_interchange.py", r"must be on an? \w+ device \(DLPack type"),
    "the DLPack version must be {}": ("test_interchange.py", "the DLPack version must be 1; got 2"),
    "must return an unused capsule": ("../cpu/test_dlpack.py", "unused capsule"),
    "all {} ranks must take part": (
        "../multi/test_mpi.py",
        "ranks must take part within 3 s; got no completion",
    ),
    "all ranks must make the same call": ("../multi/test_mpi.py", "all ranks must make the same call"),
    "the call must be valid on all ranks": (
        "../multi/test_mpi.py",
        "the call must be valid on all ranks; got on",
    ),
    "the communicator must be an intra": ("../multi/test_mpi.py", "an intracommunicator; got MPI.COMM_NULL"),
    "the communicator must be usable": ("../multi/test_mpi.py", "communicator must be usable; got one on"),
    "implicit copies to the host": ("test_arrays.py", r"use \.get\(\)"),
}


def required() -> Iterator[tuple[str, str]]:
    """The requirements in the package's messages, with {} for arguments, and their locations."""
    package = Path(hg.__file__).parent
    for folder in ("formats", "runtime", "array", "quantize", "distributed"):
        for path in sorted((package / folder).glob("*.py")):
            tree = ast.parse(path.read_text())
            skipped: set[int] = set()
            for node in ast.walk(tree):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    skipped.add(id(getattr(node.body[0], "value", None)))  # docstrings
                elif isinstance(node, ast.JoinedStr):
                    skipped |= {id(part) for part in node.values}
            for node in ast.walk(tree):
                text = ""
                if isinstance(node, ast.JoinedStr):
                    text = "".join(str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else "{}"
                                   for part in node.values)  # fmt: skip
                elif isinstance(node, ast.Constant):
                    text = str(node.value)
                if " must " in text and id(node) not in skipped:
                    yield text, f"{path.name}:{node.lineno}"


def test_each_text_stands_once() -> None:
    places: dict[str, list[str]] = {}
    for text, place in required():
        if text != "{} must be {}":
            places.setdefault(text, []).append(place)
    assert len(places) > 100
    assert [(text, found) for text, found in places.items() if len(found) > 1] == []


def test_each_text_is_tested_once() -> None:
    texts = [text for _, _, text in ROWS]
    assert len(set(texts)) == len(texts)
    here = Path(__file__).parent
    for text, place in required():
        elsewhere = next((found for part, found in ELSEWHERE.items() if part in text), None)
        if elsewhere is not None:
            file, phrase = elsewhere
            assert phrase in (here / file).read_text()
            continue
        pattern = re.escape(text).replace(r"\{\}", ".+")
        assert any(re.search(pattern, row) for row in texts), f"{place}: {text!r} has no row"
