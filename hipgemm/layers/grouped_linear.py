"""Linear layers of experts, forward and backward: each group of rows has weights of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray, asarray, new
from ..errors import raise_reasons, told_by
from ..formats.elements import BF16, BLOCK, QUANTIZED
from ..formats.scaled import ScaledArray
from ..products.grouped import grouped_matmul, grouped_wgrad
from ..quantize.amax import AmaxState
from ..quantize.quantizers import Input, dequantize, quantize_fp8, quantize_mxfp8
from ..runtime import hip as _hip
from .linear import Kept, LinearGrads, Operand, _Maker
from .passes import as_type, flat, rescale
from .problem import RECIPES, GroupedLayer, describe_grouped, describe_grouped_backward, hadamard_along


@dataclass(frozen=True)
class GroupedSaved:
    """What the forward pass of grouped layers leaves for its backward pass. It lives on the device.

    Attributes
    ----------
    recipe : str
        The recipe.
    x, w : DeviceArray or ScaledArray
        Activations (M, K) and weights (G, N, K) as the backward pass takes them: bfloat16 for bf16, else the
        codes of the forward pass; for mxfp4 the weights blocked along N.
    group_offsets : int32 array (G+1,)
        Where the groups of rows begin.
    """

    recipe: str
    x: Kept
    w: Kept
    group_offsets: Input
    layer: GroupedLayer = field(repr=False)
    scaling: str | None = field(repr=False)
    hadamard: bool | None = field(repr=False)

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of each array: its numbers and their scales."""
        return {name: getattr(self, name).nbytes for name in ("x", "w", "group_offsets")}

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(self.bytes.values())


def grouped_linear(
    x: Operand,
    w: Operand,
    group_offsets: Input,
    *,
    recipe: str = "bf16",
    x_amax: float | Input | AmaxState | None = None,
    w_amax: float | Input | AmaxState | None = None,
    scaling: str | None = None,
    hadamard: bool | None = None,
    dtype: npt.DTypeLike | None = None,
    stream: Any = None,
) -> tuple[Any, GroupedSaved]:
    """Apply a linear layer of its own to each group of rows: ``y[o[g]:o[g+1]] = x[o[g]:o[g+1]] @ w[g].T``.

    Parameters
    ----------
    x : numpy.ndarray, DeviceArray or ScaledArray
        Activations (M, K), rows sorted by group: bfloat16, float16 or float32, or quantized already.
    w : numpy.ndarray, DeviceArray or ScaledArray
        Weights (G, N, K), likewise.
    group_offsets : int32 array (G+1,)
        First row of each group, not decreasing from 0, and the end of the last, at most M; on the host or
        the device, which alone reads them there.
    recipe, x_amax, w_amax, scaling, hadamard, dtype, stream
        As for `linear`. All weights share one scale for fp8.

    Returns
    -------
    y : numpy.ndarray or DeviceArray
        (M, N), where `x` is; rows behind the last group are 0.
    saved : GroupedSaved
        What `grouped_linear_backward` needs; its `nbytes` and `bytes` say how much that is.

    Raises
    ------
    TypeError, ValueError
        For arguments that are wrong, all faults listed.

    Notes
    -----
    The greatest magnitude of fp8 is that of all rows, those behind the last group included.

    Examples
    --------
    >>> import hipgemm as hg
    >>> x, w = np.ones((3, 32), np.float32), np.stack([np.full((2, 32), g, np.float32) for g in (1, 2)])
    >>> y, saved = hg.grouped_linear(x, w, np.array([0, 1, 2], np.int32), recipe="mxfp8", dtype=np.float32)
    >>> y
    array([[32., 32.],
           [64., 64.],
           [ 0.,  0.]], dtype=float32)
    """
    function = "grouped_linear"
    handle = _hip.stream_handle(function, stream)
    layer, reasons = describe_grouped(
        x,
        w,
        group_offsets,
        recipe=recipe,
        x_amax=x_amax,
        w_amax=w_amax,
        scaling=scaling,
        hadamard=hadamard,
        dtype=dtype,
    )
    raise_reasons(function, reasons)
    assert layer is not None
    device = _hip.current_device() if layer.device is None else layer.device
    _hip.require_stream(handle, device)
    with told_by(function), _hip.on_device(device):
        maker = _GroupedMaker(recipe, scaling, hadamard, device, handle)
        offsets = maker.offsets(group_offsets)
        flags = [q.hadamard for q in (x, w) if isinstance(q, ScaledArray)]
        along_k = flags[0] if flags else hadamard_along(layer.k, hadamard)
        rows, x_kept = maker.rows(maker.bring(x), along_k, x_amax)
        weights, w_kept = maker.weights(maker.stack(w), along_k, w_amax)
        y = grouped_matmul(rows, weights.mT, offsets, dtype=dtype, stream=stream)
        saved = GroupedSaved(recipe, x_kept, w_kept, offsets, layer, scaling, hadamard)
        return (y.get() if layer.device is None else y), saved


def grouped_linear_backward(
    dy: Operand,
    saved: GroupedSaved,
    *,
    dy_amax: float | Input | AmaxState | None = None,
    format: str | None = None,
    dtype: npt.DTypeLike | None = None,
    dw_dtype: npt.DTypeLike | None = None,
    stream: Any = None,
) -> LinearGrads:
    """Return the gradients of grouped layers: in each group ``dx = dy @ w[g]`` and ``dw[g] = dy.T @ x``.

    Parameters
    ----------
    dy : numpy.ndarray, DeviceArray, ScaledArray or pair of ScaledArray
        Gradient of y (M, N), where x was; bfloat16, float16 or float32, or quantized. A pair is blocked along
        its rows, and down its columns with the same `group_offsets`.
    saved : GroupedSaved
        What `grouped_linear` returned. It may serve several times.
    dy_amax, format, dtype, dw_dtype, stream
        As for `linear_backward`.

    Returns
    -------
    LinearGrads
        Where dy is: dx (M, K), with rows of 0 behind the last group, and dw (G, N, K), 0 for an empty one.

    Raises
    ------
    TypeError, ValueError
        For arguments that are wrong, all faults listed.

    Notes
    -----
    dw of mxfp8 sums over blocks of 32 rows that begin anew with each group. mxfp4 has no kernel for that: its
    dw is computed in mxfp8, from x as the forward pass quantized it.

    Examples
    --------
    >>> import hipgemm as hg
    >>> x, w = np.ones((3, 32), np.float32), np.ones((2, 4, 32), np.float32)
    >>> y, saved = hg.grouped_linear(x, w, np.array([0, 3, 3], np.int32), recipe="mxfp8")
    >>> dx, dw = hg.grouped_linear_backward(np.ones((3, 4), np.float32), saved)
    >>> dx[0, 0], dw[:, 0, 0]
    (4, array([3, 0], dtype=bfloat16))
    """
    function = "grouped_linear_backward"
    if not isinstance(saved, GroupedSaved):
        got = type(saved).__qualname__
        raise TypeError(f"{function}: saved must be what hipgemm.grouped_linear returned; got {got}")
    handle = _hip.stream_handle(function, stream)
    layer, offsets = saved.layer, saved.group_offsets
    raise_reasons(
        function,
        describe_grouped_backward(
            dy,
            layer,
            offsets,
            (None, saved.w),
            dy_amax=dy_amax,
            format=format,
            dtype=dtype,
            dw_dtype=dw_dtype,
        ),
    )
    device = saved.x.device
    assert device is not None
    _hip.require_stream(handle, device)
    with told_by(function), _hip.on_device(device):
        maker = _GroupedMaker(saved.recipe, saved.scaling, saved.hadamard, device, handle)
        g_rows, g_columns, w, x = maker.gradients(maker.bring(dy), saved, dy_amax, format)
        dx = grouped_matmul(g_rows, w, offsets, dtype=dtype, stream=stream)
        dw = grouped_wgrad(g_columns, x, offsets, dtype=dw_dtype, stream=stream)
        return LinearGrads(dx.get(), dw.get()) if layer.device is None else LinearGrads(dx, dw)


class _GroupedMaker(_Maker):
    """Makes the operands of grouped layers, on the current device."""

    def offsets(self, group_offsets: Input) -> Input:
        """Return offsets that will not change: those of the device as they are, a copy of others."""
        if isinstance(group_offsets, DeviceArray):
            return group_offsets
        return np.array(group_offsets, np.int32)

    def rows(self, x: Any, along_k: bool, amax: Any) -> tuple[Any, Kept]:
        """Return x for the forward pass, and what the backward pass will need of it."""
        if self.recipe == "mxfp4" and not isinstance(x, ScaledArray):
            q = self.quantize(x, -1, "mxfp4_e2m1", along_k)
            return q, q
        return self.forward(x, along_k, amax)

    def stack(self, w: Any) -> Any:
        """Bring weights (G, N, K) to the device."""
        if isinstance(w, ScaledArray) and w.device is not None:
            return w
        return asarray(w, device=self.device, stream=self.stream)

    def weights(self, w: Any, along_k: bool, amax: Any) -> tuple[Any, Kept]:
        """Return weights for the forward pass, and what the backward pass will need of them."""
        if isinstance(w, ScaledArray):
            return w, w
        if self.recipe == "bf16":
            if w.dtype != BF16.dtype:
                wide = flat(w, self.stream)
                dense = new(w.shape, BF16.dtype, self.device, self.stream)
                rescale(wide, flat(dense, self.stream), self.stream)
                w = dense
            return w, w
        if self.recipe == "fp8":
            q = quantize_fp8(w, amax, stream=self.stream)
            return q, q
        if self.recipe == "mxfp8":
            q = self.quantize(w, -1, "mxfp8_e4m3", False)
            return q, q
        groups, n, _ = w.shape
        along_n = hadamard_along(n, self.hadamard)
        if n % BLOCK == 0:
            rows, columns = self.both(flat(w, self.stream), "mxfp4_e2m1", along_k, along_n)
            return stacked(rows, groups), stacked(columns, groups)
        return self.quantize(w, -1, "mxfp4_e2m1", along_k), self.quantize(w, -2, "mxfp4_e2m1", along_n)

    def blocked(self, q: ScaledArray, axis: int, hadamard: bool) -> ScaledArray:
        """Return weights blocked along an axis: themselves, or made anew from their numbers in bfloat16."""
        if q.axis == axis or q.shape[1] % BLOCK:
            return super().blocked(q, axis, hadamard)
        # No block of all rows one below the other straddles two experts.
        numbers = flat(dequantize(q, dtype=BF16.dtype, stream=self.stream), self.stream)
        return stacked(self.quantize(numbers, axis, q.format, hadamard), q.shape[0])

    def gradients(
        self, g: Any, saved: GroupedSaved, amax: Any, format: str | None
    ) -> tuple[Any, Any, Any, Any]:
        """Return g for dx and for dw, w and x, each quantized along the axis that its product sums over."""
        x: Any = saved.x
        w: Any = saved.w
        if self.recipe == "bf16":
            g = as_type(g, BF16, self.stream)
            return g, g, w, x
        if self.recipe == "fp8":
            if not isinstance(g, ScaledArray):
                g = quantize_fp8(g, amax, format=format or RECIPES["fp8"][0], stream=self.stream)
            return g, g, w, x
        transform = self.recipe == "mxfp4" and self.flag(g, -1, w)
        if isinstance(g, tuple):
            g_rows, g_columns = g
        elif isinstance(g, ScaledArray):
            g_rows, g_columns = g, self.in_groups(g, saved.group_offsets, None)
        else:
            g_rows = self.quantize(g, -1, format or RECIPES[self.recipe][0], transform)
            g_columns = self.in_groups(g, saved.group_offsets, format)
        return g_rows, g_columns, self.blocked(w, -2, transform), self.in_groups(x, saved.group_offsets, None)

    def in_groups(self, x: Any, offsets: Input, format: str | None) -> ScaledArray:
        """Quantize to mxfp8 down the columns of each group, from numbers in bfloat16 if x is quantized."""
        if isinstance(x, ScaledArray):
            format = x.format if x.format in RECIPES["mxfp8"] else None
            x = dequantize(x, dtype=BF16.dtype, stream=self.stream)
        rule: dict[str, Any] = {} if self.scaling is None else {"scaling": self.scaling}
        format = format or RECIPES["mxfp8"][0]
        return quantize_mxfp8(x, axis=0, format=format, group_offsets=offsets, stream=self.stream, **rule)


def stacked(q: ScaledArray, count: int) -> ScaledArray:
    """View a quantized matrix as `count` matrices, one below the other."""

    def view(x: DeviceArray) -> DeviceArray:
        (rows, columns), (row, column) = x.shape, x.strides
        rows //= max(1, count)
        return x._view(x._address, (count, rows, columns), (rows * row, row, column))

    shape = (count, q.shape[0] // max(1, count), q.shape[1])
    form = QUANTIZED[q.format]
    return ScaledArray._make(view(q.data), view(q.scale), form, q.axis, shape, hadamard=q.hadamard)
