"""`can_use`: whether a call would run, and by which kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import KernelNotFoundError, Reason, UnsupportedError, requirement
from ..formats.scaled import ScaledArray
from ..kernels.manifest import code_object
from ..layers.linear import grouped_linear, linear
from ..layers.problem import forward_problem
from ..products.choose import Support, choices
from ..products.grouped import grouped_matmul, grouped_wgrad
from ..products.matmul import matmul
from ..products.operation import GROUPED_MATMUL, GROUPED_WGRAD, MATMUL, Arguments, Operation
from ..products.problem import Described, Problem, describe
from ..products.run import cached_choices
from ..runtime.hip import parse_stream


def _product(op: Operation, **given: Any) -> Described:
    return describe(op, Arguments.named(op, given))


# What each operation is called by, and what describes its product (of layers the forward one).
_OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Described]]] = {
    "matmul": (matmul, partial(_product, MATMUL)),
    "linear": (linear, partial(forward_problem, "linear")),
    "grouped_matmul": (grouped_matmul, partial(_product, GROUPED_MATMUL)),
    "grouped_wgrad": (grouped_wgrad, partial(_product, GROUPED_WGRAD)),
    "grouped_linear": (grouped_linear, partial(forward_problem, "grouped_linear")),
}


def can_use(op: str, /, *args: Any, arch: str = "gfx950", **kwargs: Any) -> Support:
    """Tell whether a call would run, by the same checks as the call itself. Opens no device.

    Parameters
    ----------
    op : str
        The operation: ``"matmul"``, ``"grouped_matmul"``, ``"grouped_wgrad"``, or ``"linear"`` or
        ``"grouped_linear"`` for the forward pass.
    *args, **kwargs
        What it would be called with. Whether a stream exists, and on which device, only the call can find.
    arch : str
        The architecture to ask about.

    Returns
    -------
    Support
        True or False, with the kernel or all the reasons.

    Examples
    --------
    >>> import ml_dtypes, numpy as np
    >>> x = np.zeros((4, 64), np.float32)
    >>> answer = can_use("matmul", x, x.T)
    >>> bool(answer), answer.reasons[0].code
    (False, 'dtype')
    """
    if not isinstance(op, str) or op not in _OPERATIONS:
        raise ValueError(f"can_use: {requirement('op must be ' + ' or '.join(_OPERATIONS), repr(op))}")
    if not isinstance(arch, str):
        raise TypeError(f"can_use: {requirement('arch must be a name such as gfx950', repr(arch))}")
    function, described = _OPERATIONS[op]
    stream = parse_stream(kwargs.pop("stream", None))
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"can_use: {op}: {error}") from None
    widened = _widened(list(given.values())[:2])
    if not isinstance(stream, Reason) and (known := cached_choices(op, given, arch)) is not None:
        return Support.of(*known, _named(known[0], widened))
    problem, reasons = described(**given)
    if isinstance(stream, Reason):
        reasons = [stream, *reasons]
    if problem is None or any(r.kind is not UnsupportedError for r in reasons):
        return Support(None, tuple(reasons))
    try:
        kernels = code_object(arch).kernels.values()
    except KernelNotFoundError as error:
        return Support(None, (*reasons, Reason(KernelNotFoundError, "arch", str(error))))
    found, unsupported = choices(problem, kernels)
    reasons += unsupported
    return Support(None, tuple(reasons)) if reasons else Support.of(problem, found, _named(problem, widened))


def _widened(operands: list[Any]) -> list[bool]:
    """Operands of 4 bits that are not yet kept as 8-bit ones."""
    return [isinstance(q, ScaledArray) and "mxfp8" not in q._kernel_scales for q in operands]


def _named(p: Problem, widened: list[bool]) -> list[str]:
    pairs = zip(p.named(), widened, strict=False)
    return [name for (name, x), new in pairs if x.widens and new]
