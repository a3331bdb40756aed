"""Linear layers, for all rows or for groups of rows. `reference` defines their results."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray, asarray, new
from ..errors import error_context, raise_reasons
from ..formats.checks import Checks
from ..formats.elements import BF16
from ..formats.scaled import ScaledArray
from ..products.grouped import grouped_matmul, grouped_wgrad
from ..products.matmul import matmul
from ..quantize.amax import AmaxState
from ..quantize.quantizers import Input
from ..runtime import hip as _hip
from .operands import OperandMaker
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
    activation: str | None = None,
    glu: str | None = None,
    dtype: npt.DTypeLike | None = None,
    stream: Any = None,
) -> tuple[Any, LinearSaved]:
    """Apply a linear layer in low precision: ``y = activation((x @ w.T) * w_post_scale + bias)``.

    `x` and `w` are first rounded to bfloat16 or quantized, as the recipe says. Sums are accumulated in
    float32, and y is rounded once.

    Parameters
    ----------
    x : numpy.ndarray, DeviceArray, ScaledArray or pair of ScaledArray
        Activations (.., M, K) with two or more axes: bfloat16, float16, float32 or quantized.
    w : numpy.ndarray, DeviceArray, ScaledArray or pair of ScaledArray
        Weights (N, K), of the same types.
    recipe : str
        ``"bf16"``, ``"fp8"`` (one scale per tensor), ``"fp8_block"`` (one per 128 elements, and per 128 x 128
        of w), ``"mxfp8"`` or ``"mxfp4"`` (one per 32 elements).
    bias : array (N,), optional
        bfloat16, float16 or float32; added before the activation.
    w_post_scale : float32 array (N,), optional
        Factors of the columns of y. The weights of the layer are then ``w * w_post_scale[:, None]``.
    x_amax, w_amax : float, 0-d float32 array or AmaxState, optional
        For fp8: the absolute maximum by which to scale. An AmaxState gives delayed scaling. The default is
        current scaling, by the tensor's own amax.
    scaling : str, optional
        For mxfp8 and mxfp4: the rule of the scales, as in `quantize_mxfp8`. Default: that of the quantizer.
    hadamard : bool, optional
        For mxfp4: whether to apply a Hadamard transform first. Default: along each axis whose length is a
        multiple of 16.
    activation, glu : str, optional
        As for `matmul`. What they are applied to is saved in bfloat16.
    dtype : dtype, optional
        bfloat16 (the default), float16 or float32.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    y : numpy.ndarray or DeviceArray
        (.., M, N), or (.., M, N/2) with `glu`, on the device of `x`.
    saved : LinearSaved
        What `linear_backward` needs; `nbytes` and `bytes` give its size. It may refer to `x` and `w` on the
        device without a copy (bfloat16 or quantized ones), so do not change them before the backward pass.

    Raises
    ------
    TypeError, ValueError
        For invalid arguments. The message lists all faults.

    Notes
    -----
    A pair is an array blocked along its rows, and along its columns, such as the result of `quantize_both`.
    If a quantized argument is not a pair, the backward pass of a recipe with blocks dequantizes it to
    bfloat16 and quantizes it along the other axis. docs/use/training.md lists the products of each recipe.

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
    options |= {"activation": activation, "glu": glu}
    return forward("linear", LinearSaved, x, w, None, stream, **options)


def linear_backward(
    dy: Operand,
    saved: LinearSaved,
    *,
    dy_amax: float | Input | AmaxState | None = None,
    format: str | None = None,
    rounding: str = "nearest",
    seed: int | None = None,
    dtype: npt.DTypeLike | None = None,
    dw_dtype: npt.DTypeLike | None = None,
    dw: Input | None = None,
    accumulate: bool = False,
    stream: Any = None,
) -> LinearGrads:
    """Return the gradients of a linear layer, given that of its result.

    With ``g = dy * w_post_scale``: ``dx = g @ w`` and ``dw = (g.T @ x) / w_post_scale[:, None]``. These are
    the gradients with respect to x and the weights before quantization (straight-through). `g` is quantized
    once for both products. With an activation, dy is first multiplied by its derivative.

    Parameters
    ----------
    dy : numpy.ndarray, DeviceArray, ScaledArray or pair of ScaledArray
        The gradient of y: of its shape, on its device, bfloat16, float16 or float32. A quantized array is
        used as `g`, and its leading axes may be flattened; there is none with an activation.
    saved : LinearSaved
        The result of `linear`. It can be used several times.
    dy_amax : float, 0-d float32 array or AmaxState, optional
        For fp8: like `x_amax` of `linear`.
    format : str, optional
        The format of dy: for fp8 and fp8_block ``"fp8_e4m3"`` (the default) or ``"fp8_e5m2"``, for mxfp8
        ``"mxfp8_e4m3"`` (the default) or ``"mxfp8_e5m2"``.
    rounding, seed
        Of dy, as for `quantize_fp8`: ``"stochastic"`` with another seed for each layer and step. Only for a
        recipe that quantizes, and a dy that is not quantized.
    dtype, dw_dtype : dtype, optional
        Types of dx and dw: bfloat16 (the default), float16 or float32.
    dw : array (N, K), optional
        The destination of dw, on the device of dy; it gives the type. It must not overlap an input.
    accumulate : bool
        Add to the values in `dw`, in float32 before rounding.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    LinearGrads
        On the device of dy: dx (.., M, K), dw (N, K), and dbias (N,) in float32 if the layer has a bias.

    Raises
    ------
    TypeError, ValueError
        For invalid arguments. The message lists all faults.

    Notes
    -----
    Leading axes are flattened for dw. Rows of dw whose w_post_scale is 0 are NaN. dbias is the sum of dy in
    float32, before quantization. docs/trust/bounds.md gives the error bound of each gradient.

    The derivative of an activation is that at what the forward pass saved in bfloat16. Kernels that quantize
    dy, or sum it for dbias, form the product in float32 as they read dy, and multiply it by w_post_scale. A
    pass of its own does for bf16, which quantizes nothing, for N that is not a multiple of 8 (of 16 with
    halves), whose rows are not aligned, and for stochastic rounding without matrix kernels.

    Examples
    --------
    >>> import hipgemm as hg
    >>> x, w = np.full((2, 32), 2, np.float32), np.full((3, 32), 0.5, np.float32)
    >>> y, saved = hg.linear(x, w, recipe="fp8", dtype=np.float32)
    >>> dx, dw = hg.linear_backward(np.ones_like(y), saved, dtype=np.float32, dw_dtype=np.float32)
    >>> dx[0, :2].round(3), dw[0, :2].round(3)
    (array([1.5, 1.5], dtype=float32), array([4., 4.], dtype=float32))
    """
    options: dict[str, Any] = {"dy_amax": dy_amax, "format": format, "rounding": rounding, "seed": seed}
    options |= {"dtype": dtype, "dw_dtype": dw_dtype, "dw": dw, "accumulate": accumulate}
    return backward("linear_backward", LinearSaved, dy, saved, stream, **options)


def grouped_linear(
    x: Operand,
    w: Operand,
    group_offsets: Input,
    *,
    recipe: str = "bf16",
    bias: Input | None = None,
    x_amax: float | Input | AmaxState | None = None,
    w_amax: float | Input | AmaxState | None = None,
    scaling: str | None = None,
    hadamard: bool | None = None,
    activation: str | None = None,
    glu: str | None = None,
    dtype: npt.DTypeLike | None = None,
    stream: Any = None,
) -> tuple[Any, GroupedSaved]:
    """Apply one linear layer per group of rows: ``y[o[g]:o[g+1]] = x[o[g]:o[g+1]] @ w[g].T``.

    Parameters
    ----------
    x : numpy.ndarray, DeviceArray or ScaledArray
        Activations (M, K) with rows sorted by group: bfloat16, float16, float32 or quantized.
    w : numpy.ndarray, DeviceArray or ScaledArray
        Weights (G, N, K), of the same types.
    group_offsets : int32 array (G+1,)
        The first row of each group, and the end of the last one: from 0, not decreasing, at most M; on the
        host or the device. Offsets on the device are not copied to the host.
    recipe, x_amax, w_amax, scaling, hadamard, activation, glu, dtype, stream
        As for `linear`. For fp8 all weights share one scale.
    bias : array (N,) or (G, N), optional
        Of all groups, or of each.

    Returns
    -------
    y : numpy.ndarray or DeviceArray
        (M, N), or (M, N/2) with `glu`, on the device of `x`; rows after the last group are 0.
    saved : GroupedSaved
        What `grouped_linear_backward` needs; `nbytes` and `bytes` give its size.

    Raises
    ------
    TypeError, ValueError
        For invalid arguments. The message lists all faults.

    Notes
    -----
    The amax of fp8 is that of all rows, including rows after the last group.

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
    options: dict[str, Any] = {"recipe": recipe, "bias": bias, "x_amax": x_amax, "w_amax": w_amax}
    options |= {"scaling": scaling, "hadamard": hadamard, "dtype": dtype}
    options |= {"activation": activation, "glu": glu}
    return forward("grouped_linear", GroupedSaved, x, w, group_offsets, stream, **options)


def grouped_linear_backward(
    dy: Operand,
    saved: GroupedSaved,
    *,
    dy_amax: float | Input | AmaxState | None = None,
    format: str | None = None,
    rounding: str = "nearest",
    seed: int | None = None,
    dtype: npt.DTypeLike | None = None,
    dw_dtype: npt.DTypeLike | None = None,
    dw: Input | None = None,
    accumulate: bool = False,
    stream: Any = None,
) -> LinearGrads:
    """Return the gradients of grouped layers: in each group ``dx = dy @ w[g]`` and ``dw[g] = dy.T @ x``.

    Parameters
    ----------
    dy : numpy.ndarray, DeviceArray, ScaledArray or pair of ScaledArray
        The gradient of y (M, N), on its device: bfloat16, float16, float32 or quantized. The second array of
        a pair must be quantized along its columns with the same `group_offsets`.
    saved : GroupedSaved
        The result of `grouped_linear`. It can be used several times.
    dy_amax, format, rounding, seed, dtype, dw_dtype, dw, accumulate, stream
        As for `linear_backward`, with a `dw` (G, N, K).

    Returns
    -------
    LinearGrads
        On the device of dy: dx (M, K), with zero rows after the last group, and dw (G, N, K), with zeros for
        empty groups (unchanged with `accumulate`). With a bias, dbias of its shape in float32, from the rows
        of groups only.

    Raises
    ------
    TypeError, ValueError
        For invalid arguments. The message lists all faults.

    Notes
    -----
    dw of mxfp8 uses blocks of 32 rows, and each group begins a new block. fp8_block and mxfp4 have no kernel
    for that: their dw is computed in mxfp8, from the x that the forward pass quantized.

    Examples
    --------
    >>> import hipgemm as hg
    >>> x, w = np.ones((3, 32), np.float32), np.ones((2, 4, 32), np.float32)
    >>> y, saved = hg.grouped_linear(x, w, np.array([0, 3, 3], np.int32), recipe="mxfp8")
    >>> dx, dw = hg.grouped_linear_backward(np.ones((3, 4), np.float32), saved)
    >>> dx[0, 0], dw[:, 0, 0]
    (4, array([3, 0], dtype=bfloat16))
    """
    options: dict[str, Any] = {"dy_amax": dy_amax, "format": format, "rounding": rounding, "seed": seed}
    options |= {"dtype": dtype, "dw_dtype": dw_dtype, "dw": dw, "accumulate": accumulate}
    return backward("grouped_linear_backward", GroupedSaved, dy, saved, stream, **options)


# ---- forward and backward of both kinds
# ---------------------------------------------------------------------------------


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
    if layer.device is None:
        checks = Checks(function)
        given = {"bias": bias, "w_post_scale": factors, "group_offsets": group_offsets}
        for name, value in {**given, "x_amax": x_amax, "w_amax": w_amax}.items():
            if isinstance(value, (DeviceArray, AmaxState)):
                checks.same_device(name, value.device, device, "this product")
        checks.raise_all()
    with error_context(function), _hip.on_device(device):
        make = OperandMaker(function, layer, device, stream)
        (x, x_saved), (w, w_saved) = make.forward(make.matrix(x), make.upload(w), x_amax, w_amax)
        factors = None if factors is None else make.vector(factors)
        aux = new((layer.m, layer.n), BF16.dtype, device, stream) if layer.activated else None
        then: dict[str, Any] = {"activation": layer.activation, "glu": layer.glu, "aux": aux}
        if layer.groups is None:
            y = matmul(x, w.mT, dtype=dtype, col_scale=factors, bias=bias, **then, stream=stream)
        else:
            if not isinstance(group_offsets, DeviceArray):
                group_offsets = np.array(group_offsets, np.int32)  # the caller may change the array
            if aux is not None:  # the product leaves rows of no group as they are
                _hip.clear(aux.ptr, aux.nbytes, stream)
            y = grouped_matmul(x, w.mT, group_offsets, dtype=dtype, bias=bias, **then, stream=stream)
        y = with_lead(y, layer.lead)
        saved = saved_as(layer.recipe.name, x_saved, w_saved, factors, group_offsets, layer, aux)
        return (y.get() if layer.device is None else y), saved


def backward(function: str, saved_as: type[S], dy: Any, saved: S, stream: Any, **options: Any) -> LinearGrads:
    """Return the gradients."""
    if not isinstance(saved, saved_as):
        by, got = function.removesuffix("_backward"), type(saved).__qualname__
        raise TypeError(f"{function}: saved must be the result of hipgemm.{by}; got {got}")
    stream = _hip.stream_handle(function, stream)
    layer, offsets, factors = saved.layer, saved.group_offsets, saved.w_post_scale
    dtype, dw_dtype, given, accumulate = (options[x] for x in ("dtype", "dw_dtype", "dw", "accumulate"))
    checks = Checks(function)
    for name in saved.arrays:
        checks.in_memory(f"saved.{name}", getattr(saved, name))
    raise_reasons(
        function, checks.found + describe_backward(dy, layer, (saved.x, saved.w), offsets, **options)
    )
    device = saved.x.device
    assert device is not None
    _hip.require_stream(stream, device)
    if given is not None:
        dw_dtype = given.dtype
    with error_context(function), _hip.on_device(device):
        make = OperandMaker(function, layer, device, stream)
        out = asarray(given, device=device, stream=stream) if isinstance(given, np.ndarray) else given
        dy = make.matrix(dy)
        of_g = {name: options[name] for name in ("rounding", "seed")}
        to_sum = dy
        if saved.aux is not None:
            dy, to_sum = make.before_activation(dy, saved.aux, factors, of_g)
        g = dy if factors is None or not isinstance(dy, DeviceArray) else make.scaled(dy, factors)
        g_rows, g_columns, w, x = make.backward(g, saved, options["dy_amax"], options["format"], of_g)
        in_place: dict[str, Any] = {"dtype": dw_dtype, "accumulate": accumulate, "stream": stream}
        if offsets is not None:
            dx = grouped_matmul(g_rows, w, offsets, dtype=dtype, stream=stream)
            dw = grouped_wgrad(g_columns, x, offsets, out, **in_place)
        else:
            dx = with_lead(matmul(g_rows, w, dtype=dtype, stream=stream), layer.lead)
            if factors is None:
                dw = matmul(g_columns.T, x, out, **in_place)
            else:
                dw = make.weight_grad(g_columns, x, factors, out, dw_dtype, accumulate)
        dbias = make.bias_grad(to_sum, factors, offsets) if layer.biased else None
        if layer.device is None:
            return LinearGrads(dx.get(), dw.get(out=given), None if dbias is None else dbias.get())
        return LinearGrads(dx, dw, dbias)


def with_lead(x: Any, lead: tuple[int, ...]) -> Any:
    """View a matrix (rows, columns) as (lead.., columns)."""
    return x if len(lead) == 1 else x.reshape(*lead, x.shape[1])
