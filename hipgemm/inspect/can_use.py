"""`can_use`: whether a call would run, and by which kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ..distributed.sharding import describe_part, sharded_matmul
from ..errors import KernelNotFoundError, Reason, UnsupportedError, requirement, shown
from ..kernels.manifest import Kernel, code_object
from ..kernels.primitives import refusal
from ..layers.linear import grouped_linear, linear
from ..layers.problem import forward_problem
from ..products.choose import Support, choices
from ..products.grouped import grouped_matmul, grouped_wgrad
from ..products.matmul import matmul
from ..products.operation import OPERATIONS, Arguments
from ..products.problem import Problem, describe
from ..products.run import cached_choices
from ..runtime import hip
from ..runtime.hip import parse_stream

_LISTED: tuple[Callable[..., Any], ...] = (
    *(matmul, grouped_matmul, grouped_wgrad),
    *(linear, grouped_linear, sharded_matmul),
)
_FUNCTIONS = {function.__name__: function for function in _LISTED}


def can_use(op: str, /, *args: Any, arch: str | None = None, **kwargs: Any) -> Support:
    """Return whether a call would run, by the same checks as the call itself. Runs nothing.

    Parameters
    ----------
    op : str
        The operation: ``"matmul"``, ``"grouped_matmul"``, ``"grouped_wgrad"``, ``"linear"`` or
        ``"grouped_linear"`` for the forward pass, or ``"sharded_matmul"`` for the product of the first part.
    *args, **kwargs
        The arguments of the call. Whether a stream exists, and on which device, is not checked.
    arch : str, optional
        The architecture to answer for; then no device is opened. Default: that of the device that would serve
        the call, which is the device of the operands or the current one.

    Returns
    -------
    Support
        Its truth value is the answer; it holds the kernel, or all reasons.

    Examples
    --------
    >>> import ml_dtypes, numpy as np
    >>> x = np.zeros((4, 64), np.float32)
    >>> answer = can_use("matmul", x, x.T)
    >>> bool(answer), answer.reasons[0].code
    (False, 'dtype')
    """
    if not isinstance(op, str) or op not in _FUNCTIONS:
        raise ValueError(f"can_use: {requirement('op must be ' + ' or '.join(_FUNCTIONS), shown(op))}")
    if arch is not None and not isinstance(arch, str):
        raise TypeError(f"can_use: {requirement('arch must be a name such as gfx950', shown(arch))}")
    stream = parse_stream(kwargs.pop("stream", None))
    try:
        given = inspect.signature(_FUNCTIONS[op]).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"can_use: {op}: {error}") from None
    operation = OPERATIONS.get(op)
    later: tuple[str, ...] = ()
    quantizes = False
    if op == "sharded_matmul":
        how = [given.pop(name, None) for name in ("split", "devices", "timeout")]
        problem, reasons, later = describe_part(Arguments(**given), *how)
    elif operation is None:
        problem, reasons = forward_problem(op, **given)
        quantizes = True
    else:
        call = Arguments.named(operation, given)
        if not isinstance(stream, Reason) and (known := cached_choices(operation, call, arch)) is not None:
            return Support.of(*known)
        problem, reasons = describe(operation, call)
    if isinstance(stream, Reason):
        reasons = [stream, *reasons]
    if problem is None or any(r.kind is not UnsupportedError for r in reasons):
        return Support(None, tuple(reasons))
    device = None
    if arch is None:
        device = hip.current_device() if problem.device is None else problem.device
        arch = hip.arch(device)
    try:
        kernels = code_object(arch).kernels.values()
    except KernelNotFoundError as error:
        return Support(None, (*reasons, Reason(KernelNotFoundError, "arch", str(error))))
    found, unsupported = choices(problem, kernels, device)
    reasons += unsupported
    if quantizes and device is not None:
        reasons += _refused_quantizers(problem, kernels, device)
    if reasons:
        return Support(None, tuple(reasons))
    support = Support.of(problem, found)
    return replace(support, stages=later, apart="ranges of K are added first") if later else support


def _refused_quantizers(p: Problem, kernels: Iterable[Kernel], device: int) -> list[Reason]:
    """Why a layer cannot quantize its operands: the kernels rest on a failed primitive."""
    for form in {x.format.name for x in (p.a, p.b) if x.format.scale_dtype is not None}:
        operation = f"quantize_{form.split('_')[0]}"
        for kernel in kernels:
            if kernel.op == operation and (text := refusal(device, kernel)):
                return [Reason(UnsupportedError, "primitive", text)]
    return []
