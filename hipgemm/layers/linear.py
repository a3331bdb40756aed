"""Linear layers, forward and backward, in four recipes. What they compute is in `reference`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray, asarray, lend, new
from ..errors import raise_reasons, told_by
from ..formats.elements import BF16, F32, QUANTIZED, format_of
from ..formats.scaled import ScaledArray
from ..products.matmul import matmul
from ..quantize.amax import AmaxState
from ..quantize.quantizers import (
    Input,
    dequantize,
    quantize_both,
    quantize_fp8,
    quantize_mxfp4,
    quantize_mxfp8,
)
from ..runtime import hip as _hip
from .passes import as_type, flat, padded, rescale, sum_rows, with_lead
from .problem import RECIPES, Layer, describe_backward, describe_linear, first, hadamard_along

Operand = Input | ScaledArray | tuple[ScaledArray, ScaledArray]
Kept = DeviceArray | ScaledArray


@dataclass(frozen=True)
class LinearSaved:
    """What the forward pass of a layer leaves for its backward pass. It lives on the device.

    Attributes
    ----------
    recipe : str
        The recipe.
    x, w : DeviceArray or ScaledArray
        Activations (M, K) and weights (N, K) as the backward pass takes them: bfloat16 for bf16; the codes
        of the forward pass for fp8 and mxfp8; for mxfp4 those blocked along M and N, unless what came in
        was quantized already.
    w_post_scale : DeviceArray or None
        The factors of the columns of y.
    """

    recipe: str
    x: Kept
    w: Kept
    w_post_scale: DeviceArray | None
    layer: Layer = field(repr=False)
    biased: bool = field(repr=False)
    scaling: str | None = field(repr=False)
    hadamard: bool | None = field(repr=False)

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of each array: its numbers and their scales."""
        arrays = {"x": self.x, "w": self.w, "w_post_scale": self.w_post_scale}
        return {name: 0 if array is None else array.nbytes for name, array in arrays.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(self.bytes.values())


@dataclass(frozen=True)
class LinearGrads:
    """Gradients of a linear layer; unpacks into ``dx, dw``, and ``dbias`` if the layer had a bias.

    Attributes
    ----------
    dx : array (lead.., K)
        With respect to x.
    dw : array (N, K)
        With respect to the weights, w_post_scale included.
    dbias : float32 array (N,), or None
        With respect to the bias.
    """

    dx: Any
    dw: Any
    dbias: Any = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.dx, self.dw) if self.dbias is None else (self.dx, self.dw, self.dbias))


def linear(
    x: Operand,
    w: Operand,
    *,
    recipe: str = "bf16",
    bias: Input | None = None,
    w_post_scale: Input | None = None,
    x_amax: float | Input | AmaxState | None = None,
    w_amax: float | Input | AmaxState | None = None,
    scaling: str | None = None,
    hadamard: bool | None = None,
    dtype: npt.DTypeLike | None = None,
    stream: Any = None,
) -> tuple[Any, LinearSaved]:
    """Apply a linear layer in low precision: ``y = (x @ w.T) * w_post_scale + bias``.

    `x` and `w` are brought to the recipe's format first: rounded to bfloat16, or quantized. Sums are kept
    in float32, and y is rounded once.

    Parameters
    ----------
    x : numpy.ndarray, DeviceArray, ScaledArray or pair of ScaledArray
        Activations (.., M, K), of two axes or more: bfloat16, float16 or float32, or quantized already.
    w : numpy.ndarray, DeviceArray, ScaledArray or pair of ScaledArray
        Weights (N, K), likewise.
    recipe : str
        ``"bf16"``, ``"fp8"`` (one scale for a tensor), ``"mxfp8"`` or ``"mxfp4"`` (one for 32 numbers).
    bias : array (N,), optional
        bfloat16, float16 or float32; added last.
    w_post_scale : float32 array (N,), optional
        Factors of the columns of y, which the weights lack: the real ones are ``w * w_post_scale[:, None]``.
    x_amax, w_amax : float, 0-d float32 array or AmaxState, optional
        For fp8: what to take for the greatest magnitude. An AmaxState is delayed scaling; the default is
        current scaling, by the tensor's own.
    scaling : str, optional
        For mxfp8 and mxfp4: the rule of the scales, as in `quantize_mxfp8`. Default: the quantizers' own.
    hadamard : bool, optional
        For mxfp4: whether a Hadamard transform comes first. Default: along each axis whose length is a
        multiple of 16.
    dtype : dtype, optional
        bfloat16 (the default), float16 or float32.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    y : numpy.ndarray or DeviceArray
        (.., M, N), where `x` is.
    saved : LinearSaved
        What `linear_backward` needs; its `nbytes` and `bytes` say how much that is. It refers to a
        bfloat16 or quantized `x` and `w` on the device, which must not change before.

    Raises
    ------
    TypeError, ValueError
        For arguments that are wrong, all faults listed.

    Notes
    -----
    A pair is what `quantize_both` returns: an array blocked along its rows and along its columns. Of
    anything quantized that is no pair, the backward pass of an MX recipe makes the other one from its
    numbers in bfloat16. docs/training.md tells the products of each recipe and their error bounds.

    Examples
    --------
    >>> import hipgemm as hg
    >>> x, w = np.ones((2, 64), np.float32), np.full((3, 64), 0.5, np.float32)
    >>> y, saved = hg.linear(x, w, recipe="mxfp8", dtype=np.float32)
    >>> y
    array([[32., 32., 32.],
           [32., 32., 32.]], dtype=float32)
    >>> saved.bytes
    {'x': 132, 'w': 198, 'w_post_scale': 0}
    """
    function = "linear"
    handle = _hip.stream_handle(function, stream)
    layer, reasons = describe_linear(
        x,
        w,
        recipe=recipe,
        bias=bias,
        w_post_scale=w_post_scale,
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
        maker = _Maker(recipe, scaling, hadamard, device, handle)
        flags = [q.hadamard for q in (first(x), first(w)) if isinstance(q, ScaledArray)]
        along_k = flags[0] if flags else hadamard_along(layer.k, hadamard)
        rows, x_kept = maker.forward(maker.bring(x), along_k, x_amax)
        columns, w_kept = maker.forward(maker.bring(w), along_k, w_amax)
        factors = None if w_post_scale is None else maker.vector(w_post_scale)
        y = matmul(rows, columns.T, dtype=dtype, col_scale=factors, bias=bias, stream=stream)
        y = with_lead(y, layer.lead)
        saved = LinearSaved(recipe, x_kept, w_kept, factors, layer, bias is not None, scaling, hadamard)
        return (y.get() if layer.device is None else y), saved


def linear_backward(
    dy: Operand,
    saved: LinearSaved,
    *,
    dy_amax: float | Input | AmaxState | None = None,
    format: str | None = None,
    dtype: npt.DTypeLike | None = None,
    dw_dtype: npt.DTypeLike | None = None,
    stream: Any = None,
) -> LinearGrads:
    """Return the gradients of a linear layer, given that of its result.

    With ``g = dy * w_post_scale``: ``dx = g @ w`` and ``dw = (g.T @ x) / w_post_scale[:, None]``, the
    gradients with respect to the real x and weights, as if quantizers changed nothing. `g` is brought to
    the recipe's format once for both products.

    Parameters
    ----------
    dy : numpy.ndarray, DeviceArray, ScaledArray or pair of ScaledArray
        Of the shape of y, where x and w were; bfloat16, float16 or float32. One that is quantized already
        counts as `g`, and may have its leading axes flattened.
    saved : LinearSaved
        What `linear` returned. It may serve several times.
    dy_amax : float, 0-d float32 array or AmaxState, optional
        For fp8: as `x_amax` of `linear`.
    format : str, optional
        What to bring dy to: for fp8 ``"fp8_e4m3"`` (the default) or ``"fp8_e5m2"``, for mxfp8
        ``"mxfp8_e4m3"`` or ``"mxfp8_e5m2"``.
    dtype, dw_dtype : dtype, optional
        Types of dx and dw: bfloat16 (the default), float16 or float32.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    LinearGrads
        Where dy is: dx (.., M, K), dw (N, K), and dbias (N,) in float32 if the layer had a bias.

    Raises
    ------
    TypeError, ValueError
        For arguments that are wrong, all faults listed.

    Notes
    -----
    Leading axes are flattened for dw. Rows of dw whose w_post_scale is 0 are NaN. dbias is summed in
    float32 from dy as it came. Each gradient's error bound is in docs/training.md.

    Examples
    --------
    >>> import hipgemm as hg
    >>> x, w = np.full((2, 32), 2, np.float32), np.full((3, 32), 0.5, np.float32)
    >>> y, saved = hg.linear(x, w, recipe="fp8", dtype=np.float32)
    >>> dx, dw = hg.linear_backward(np.ones_like(y), saved, dtype=np.float32, dw_dtype=np.float32)
    >>> dx[0, :2].round(3), dw[0, :2].round(3)
    (array([1.5, 1.5], dtype=float32), array([4., 4.], dtype=float32))
    """
    function = "linear_backward"
    if not isinstance(saved, LinearSaved):
        raise TypeError(
            f"{function}: saved must be what hipgemm.linear returned; got {type(saved).__qualname__}"
        )
    handle = _hip.stream_handle(function, stream)
    layer = saved.layer
    kept = saved.x, saved.w
    raise_reasons(
        function,
        describe_backward(dy, layer, kept, dy_amax=dy_amax, format=format, dtype=dtype, dw_dtype=dw_dtype),
    )
    device = saved.x.device
    assert device is not None
    _hip.require_stream(handle, device)
    with told_by(function), _hip.on_device(device):
        maker = _Maker(saved.recipe, saved.scaling, saved.hadamard, device, handle)
        g = given = maker.bring(dy)
        factors = saved.w_post_scale
        if factors is not None and isinstance(g, DeviceArray):
            to = BF16 if saved.recipe == "bf16" else F32
            g = rescale(g, padded((layer.m, layer.n), to.dtype, device, handle), handle, columns=factors)
        g_rows, g_columns, w, x = maker.backward(g, saved, dy_amax, format)
        dx = with_lead(matmul(g_rows, w, dtype=dtype, stream=stream), layer.lead)
        if factors is None:
            dw = matmul(g_columns.T, x, dtype=dw_dtype, stream=stream)
        else:
            raw = matmul(g_columns.T, x, dtype=F32.dtype, stream=stream)
            to = BF16 if dw_dtype is None else format_of(dw_dtype) or BF16
            dw = rescale(
                raw, new((layer.n, layer.k), to.dtype, device, handle), handle, rows=factors, divide=True
            )
        dbias = maker.bias_grad(given, factors) if saved.biased else None
        if layer.device is None:
            return LinearGrads(dx.get(), dw.get(), None if dbias is None else dbias.get())
        return LinearGrads(dx, dw, dbias)


class _Maker:
    """Makes operands in a recipe's format, on the current device."""

    def __init__(
        self, recipe: str, scaling: str | None, hadamard: bool | None, device: int, stream: int
    ) -> None:
        self.recipe, self.scaling, self.hadamard = recipe, scaling, hadamard
        self.device, self.stream = device, stream

    # ---- onto the device, as matrices ----

    def bring(self, x: Any) -> Any:
        """Bring an operand to the device as a matrix (rows, K); of a pair, both parts."""
        if isinstance(x, tuple):
            return tuple(self.bring(q) for q in x)
        if not isinstance(x, ScaledArray):
            return flat(asarray(x, device=self.device, stream=self.stream), self.stream)
        q = x if x.device is not None else asarray(x, device=self.device, stream=self.stream)
        if q.ndim == 2:
            return q
        rows = int(np.prod(q.shape[:-1], dtype=np.int64))
        scale = flat(q.scale, self.stream) if q.scale.shape else q.scale
        return ScaledArray._make(
            flat(q.data, self.stream),
            scale,
            QUANTIZED[q.format],
            -1,
            (rows, q.shape[-1]),
            hadamard=q.hadamard,
            amax=q.amax,
        )

    def vector(self, x: Any) -> DeviceArray:
        """Bring factors to the device."""
        return x if isinstance(x, DeviceArray) else lend(x, self.device, self.stream)

    # ---- into the format ----

    def forward(self, x: Any, along_k: bool, amax: Any) -> tuple[Any, Kept]:
        """Return x (or w) for the forward pass, and what the backward pass will need of it."""
        if isinstance(x, tuple):
            return x
        if isinstance(x, ScaledArray):
            return x, x
        if self.recipe == "bf16":
            x = as_type(x, BF16, self.stream)
            return x, x
        if self.recipe == "fp8":
            q = quantize_fp8(x, amax, stream=self.stream)
            return q, q
        if self.recipe == "mxfp8":
            q = self.quantize(x, -1, "mxfp8_e4m3", False)
            return q, q
        return self.both(x, "mxfp4_e2m1", along_k, hadamard_along(x.shape[0], self.hadamard))

    def backward(
        self, g: Any, saved: LinearSaved, amax: Any, format: str | None
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
        # Where one operand of a product is transformed, so must the other be.
        n_flag, m_flag = self.flag(g, -1, w), self.flag(g, -2, x)
        g_rows, g_columns = self.pair(g, format or RECIPES[self.recipe][0], n_flag, m_flag)
        return g_rows, g_columns, self.blocked(w, -2, n_flag), self.blocked(x, -2, m_flag)

    def flag(self, g: Any, axis: int, kept: ScaledArray) -> bool:
        """Whether the product over an axis of g is to be one of transformed operands."""
        if self.recipe != "mxfp4":
            return False
        if kept.axis == -2:
            return kept.hadamard
        for part in g if isinstance(g, tuple) else (g,):
            if isinstance(part, ScaledArray) and part.axis == axis:
                return part.hadamard
        return hadamard_along(g[0].shape[axis] if isinstance(g, tuple) else g.shape[axis], self.hadamard)

    def pair(self, x: Any, format: str, along: bool, across: bool) -> tuple[ScaledArray, ScaledArray]:
        """Return x blocked along its rows and along its columns, however it came."""
        if isinstance(x, tuple):
            return x
        if isinstance(x, ScaledArray):
            return self.blocked(x, -1, along), self.blocked(x, -2, across)
        return self.both(x, format, along, across)

    def both(self, x: DeviceArray, format: str, along: bool, across: bool) -> tuple[ScaledArray, ScaledArray]:
        """Quantize along both axes: in one pass, unless only one of them is to be transformed."""
        if along != across:
            return self.quantize(x, -1, format, along), self.quantize(x, -2, format, across)
        options: dict[str, Any] = {"hadamard": along} if format == "mxfp4_e2m1" else {}
        return quantize_both(x, format, scaling=self.scaling, stream=self.stream, **options)

    def blocked(self, q: ScaledArray, axis: int, hadamard: bool) -> ScaledArray:
        """Return an array blocked along an axis: itself, or made anew from its numbers in bfloat16."""
        if q.axis == axis:
            return q
        return self.quantize(dequantize(q, dtype=BF16.dtype, stream=self.stream), axis, q.format, hadamard)

    def quantize(self, x: DeviceArray, axis: int, format: str, hadamard: bool) -> ScaledArray:
        """Quantize to an MX format along an axis."""
        rule: dict[str, Any] = {} if self.scaling is None else {"scaling": self.scaling}
        if format == "mxfp4_e2m1":
            return quantize_mxfp4(x, axis=axis, hadamard=hadamard, stream=self.stream, **rule)
        return quantize_mxfp8(x, axis=axis, format=format, stream=self.stream, **rule)

    # ---- the bias ----

    def bias_grad(self, dy: Any, factors: DeviceArray | None) -> DeviceArray:
        """Sum dy, as it came, over its rows; one that came quantized has the factors in it already."""
        x = dy[0] if isinstance(dy, tuple) else dy
        if not isinstance(x, ScaledArray):
            return sum_rows(x, self.stream)
        total = sum_rows(dequantize(x, stream=self.stream), self.stream)
        if factors is None:
            return total
        out = new((1, total.shape[0]), F32.dtype, self.device, self.stream)
        return rescale(total[None], out, self.stream, columns=factors, divide=True)[0]
