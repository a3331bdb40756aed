"""Linear layers, one for all rows or one for each group of rows. What they compute is in `reference`."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray, new
from ..errors import error_context, raise_reasons
from ..formats.elements import BF16, F32
from ..formats.scaled import ScaledArray
from ..products.grouped import grouped_matmul, grouped_wgrad
from ..products.matmul import matmul
from ..quantize.amax import AmaxState
from ..quantize.quantizers import Input
from ..runtime import hip as _hip
from .operands import OperandMaker
from .passes import rescale
from .problem import describe_backward, describe_layer
from .saved import GroupedSaved, LinearGrads, LinearSaved, Saved

Operand = Input | ScaledArray | tuple[ScaledArray, ScaledArray]
S = TypeVar("S", bound=Saved)


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
    options: dict[str, Any] = {"recipe": recipe, "bias": bias, "w_post_scale": w_post_scale, "dtype": dtype}
    options |= {"x_amax": x_amax, "w_amax": w_amax, "scaling": scaling, "hadamard": hadamard}
    return forward("linear", LinearSaved, x, w, None, stream, **options)


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
    options = {"dy_amax": dy_amax, "format": format, "dtype": dtype, "dw_dtype": dw_dtype}
    return backward("linear_backward", LinearSaved, dy, saved, stream, **options)


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
    options: dict[str, Any] = {"recipe": recipe, "x_amax": x_amax, "w_amax": w_amax}
    options |= {"scaling": scaling, "hadamard": hadamard, "dtype": dtype}
    return forward("grouped_linear", GroupedSaved, x, w, group_offsets, stream, **options)


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
    options = {"dy_amax": dy_amax, "format": format, "dtype": dtype, "dw_dtype": dw_dtype}
    return backward("grouped_linear_backward", GroupedSaved, dy, saved, stream, **options)


# ---- both of them ----------------------------------------------------------------------------------


def forward(
    function: str, saved_as: type[S], x: Any, w: Any, group_offsets: Any, stream: Any, **options: Any
) -> tuple[Any, S]:
    """Return y, and what the backward pass needs."""
    stream = _hip.stream_handle(function, stream)
    layer, reasons = describe_layer(function, x, w, group_offsets, **options)
    raise_reasons(function, reasons)
    assert layer is not None
    device = _hip.current_device() if layer.device is None else layer.device
    _hip.require_stream(stream, device)
    x_amax, w_amax, dtype = options["x_amax"], options["w_amax"], options["dtype"]
    bias, factors = options.get("bias"), options.get("w_post_scale")
    with error_context(function), _hip.on_device(device):
        make = OperandMaker(function, layer, device, stream)
        (x, x_kept), (w, w_kept) = make.forward(make.matrix(x), make.upload(w), x_amax, w_amax)
        factors = None if factors is None else make.vector(factors)
        if layer.groups is None:
            y = matmul(x, w.mT, dtype=dtype, col_scale=factors, bias=bias, stream=stream)
        else:
            if not isinstance(group_offsets, DeviceArray):
                group_offsets = np.array(group_offsets, np.int32)  # the caller may change the array
            y = grouped_matmul(x, w.mT, group_offsets, dtype=dtype, stream=stream)
        y = with_lead(y, layer.lead)
        saved = saved_as(layer.recipe.name, x_kept, w_kept, factors, group_offsets, layer)
        return (y.get() if layer.device is None else y), saved


def backward(function: str, saved_as: type[S], dy: Any, saved: S, stream: Any, **options: Any) -> LinearGrads:
    """Return the gradients."""
    if not isinstance(saved, saved_as):
        by, got = function.removesuffix("_backward"), type(saved).__qualname__
        raise TypeError(f"{function}: saved must be what hipgemm.{by} returned; got {got}")
    stream = _hip.stream_handle(function, stream)
    layer, offsets, factors = saved.layer, saved.group_offsets, saved.w_post_scale
    dtype, dw_dtype = options["dtype"], options["dw_dtype"]
    raise_reasons(function, describe_backward(dy, layer, (saved.x, saved.w), offsets, **options))
    device = saved.x.device
    assert device is not None
    _hip.require_stream(stream, device)
    with error_context(function), _hip.on_device(device):
        make = OperandMaker(function, layer, device, stream)
        dy = make.matrix(dy)
        g = dy if factors is None or not isinstance(dy, DeviceArray) else make.scaled(dy, factors)
        g_rows, g_columns, w, x = make.backward(g, saved, options["dy_amax"], options["format"])
        if offsets is not None:
            dx = grouped_matmul(g_rows, w, offsets, dtype=dtype, stream=stream)
            dw = grouped_wgrad(g_columns, x, offsets, dtype=dw_dtype, stream=stream)
        else:
            dx = with_lead(matmul(g_rows, w, dtype=dtype, stream=stream), layer.lead)
            dw = matmul(g_columns.T, x, dtype=dw_dtype if factors is None else F32.dtype, stream=stream)
        if factors is not None:
            to = BF16.dtype if dw_dtype is None else np.dtype(dw_dtype)
            out = new((layer.n, layer.k), to, device, stream)
            dw = rescale(function, dw, out, stream, rows=factors, divide=True)
        dbias = make.bias_grad(dy, factors) if layer.biased else None
        if layer.device is None:
            return LinearGrads(dx.get(), dw.get(), None if dbias is None else dbias.get())
        return LinearGrads(dx, dw, dbias)


def with_lead(x: Any, lead: tuple[int, ...]) -> Any:
    """View a matrix (rows, columns) as (lead.., columns)."""
    return x if len(lead) == 1 else x.reshape(*lead, x.shape[1])
