"""Products by hipBLASLt, through its C API, to compare with: ``python -m hipgemm bench --op matmul``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from hipgemm import testing
from hipgemm.array.device_array import DeviceArray, empty
from hipgemm.formats.scaled import ScaledArray

NAMES = ("libhipblaslt.so", "libhipblaslt.so.1", "libhipblaslt.so.0")
WORKSPACE = 128 << 20  # bytes that it may use
CHECKED = (4, 64)  # rows and columns of each result

# Of hipblaslt.h, hipblas-common.h and library_types.h.
_SUCCESS, _COMPUTE_32F, _OP_T = 0, 2, 112
_TRANSA, _A_SCALE_POINTER, _B_SCALE_POINTER = 0, 5, 6
_MAX_WORKSPACE_BYTES = 1
_R_32F = 0
_DATA_TYPES = {"bf16": 14, "f16": 2, "fp8_e4m3": 28, "fp8_e5m2": 29}
_RESULT_BYTES = 256  # more than hipblasLtMatmulHeuristicResult_t has, which begins with the algorithm
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "Create": (ctypes.c_void_p,),
    "MatrixLayoutCreate": (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "MatmulDescCreate": (ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
    "MatmulDescSetAttribute": (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t),
    "MatmulPreferenceCreate": (ctypes.c_void_p,),
    "MatmulPreferenceSetAttribute": (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t),
    "MatmulAlgoGetHeuristic": (*(ctypes.c_void_p,) * 7, ctypes.c_int, *(ctypes.c_void_p,) * 2),
    "Matmul": (*(ctypes.c_void_p,) * 14, ctypes.c_size_t, ctypes.c_void_p),
}


class HipBlasLtError(Exception):
    """Why there is nothing to compare with."""


def open_library(hip_library: str) -> ctypes.CDLL:
    """Open the hipBLASLt of a HIP library: in its folder, or else where the dynamic loader finds it."""
    folder = Path(hip_library).parent
    faults = []
    for name in (*(str(folder / name) for name in NAMES if (folder / name).exists()), *NAMES):
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            faults.append(str(error))
    raise HipBlasLtError(faults[0])


class HipBlasLt:
    """The library, with a handle."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._handle = self._created("Create")
        self._workspace = empty((WORKSPACE,), np.uint8)
        self._preference = self._created("MatmulPreferenceCreate")
        limit = ctypes.c_uint64(WORKSPACE)
        self._set("MatmulPreferenceSetAttribute", self._preference, _MAX_WORKSPACE_BYTES, limit)

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, f"hipblasLt{name}")
        except AttributeError:
            raise HipBlasLtError(f"hipblasLt{name} is missing") from None
        function.argtypes, function.restype = _SIGNATURES[name], ctypes.c_int
        if (status := function(*arguments)) != _SUCCESS:
            raise HipBlasLtError(f"hipblasLt{name} returned status {status}")

    def _created(self, name: str, *arguments: Any) -> int:
        made = ctypes.c_void_p()
        self._call(name, ctypes.byref(made), *arguments)
        return made.value or 0

    def _set(self, function: str, what: int, attribute: int, value: Any) -> None:
        self._call(function, what, attribute, ctypes.byref(value), ctypes.sizeof(value))

    def matmul(self, form: str, a: Any, w: Any) -> tuple[Callable[[Any], DeviceArray], DeviceArray]:
        """Prepare ``a @ w.T`` of matrices (M, K) and (N, K); the result is bf16, or f16 of f16.

        Its matrices are column-major: there the result is (N, M), w (K, N) and transposed, and a (K, M).
        """
        if form not in _DATA_TYPES:
            raise HipBlasLtError(f"not compared in {form}")
        (m, k), n = a.shape, w.shape[0]
        x, y = ((q.data, q.scale) if isinstance(q, ScaledArray) else (q, None) for q in (a, w))
        out = empty((m, n), np.float16 if form == "f16" else ml_dtypes.bfloat16)
        kind, out_kind = _DATA_TYPES[form], _DATA_TYPES["f16" if form == "f16" else "bf16"]
        product = self._created("MatmulDescCreate", _COMPUTE_32F, _R_32F)
        self._set("MatmulDescSetAttribute", product, _TRANSA, ctypes.c_int32(_OP_T))
        for attribute, scale in ((_A_SCALE_POINTER, y[1]), (_B_SCALE_POINTER, x[1])):
            if scale is not None:
                self._set("MatmulDescSetAttribute", product, attribute, ctypes.c_void_p(scale.ptr))
        layouts = [
            self._created("MatrixLayoutCreate", of, rows, columns, pitch)
            for of, rows, columns, pitch in (
                (kind, k, n, _pitch(y[0])),
                (kind, k, m, _pitch(x[0])),
                (out_kind, n, m, n),
            )
        ]
        found, count = ctypes.create_string_buffer(_RESULT_BYTES), ctypes.c_int()
        arguments = (*layouts, layouts[2], self._preference, 1, found, ctypes.byref(count))
        self._call("MatmulAlgoGetHeuristic", self._handle, product, *arguments)
        if not count.value:
            raise HipBlasLtError(f"it has no algorithm for {form}, {m} x {n} x {k}")
        one, zero = ctypes.c_float(1), ctypes.c_float(0)

        def call(stream: Any) -> DeviceArray:
            self._call(
                "Matmul",
                *(self._handle, product, ctypes.byref(one)),
                *(y[0].ptr, layouts[0], x[0].ptr, layouts[1], ctypes.byref(zero)),
                *(out.ptr, layouts[2], out.ptr, layouts[2]),
                *(found, self._workspace.ptr, WORKSPACE, int(stream)),
            )
            return out

        return call, out


def _pitch(x: DeviceArray) -> int:
    """Elements from one row to the next."""
    return x.strides[0] // x.dtype.itemsize


def check(out: DeviceArray, a: Any, w: Any) -> None:
    """Raise an AssertionError if a corner of a product of host arrays is wrong."""
    rows, columns = CHECKED
    testing.assert_gemm_close(out.get()[:rows, :columns], _first(a, rows), _first(w, columns).T)


def _first(x: Any, rows: int) -> Any:
    if isinstance(x, ScaledArray):
        return ScaledArray(x.data[:rows], x.scale, x.format)
    return x[:rows]
