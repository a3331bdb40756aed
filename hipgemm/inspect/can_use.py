"""`can_use`: whether a call would run, and by which kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import KernelNotFoundError, Reason, UnsupportedError, sentence
from ..formats.scaled import ScaledArray
from ..kernels.manifest import code_object
from ..layers.problem import describe_forward, describe_grouped_forward
from ..products.choose import Support, choices
from ..products.problem import (
    Described,
    Problem,
    describe_grouped_matmul,
    describe_grouped_wgrad,
    describe_matmul,
)
from ..products.run import kept_choices
from ..runtime.hip import read_stream

# What describes the product of each operation; for layers that of the forward pass.
_DESCRIBE: dict[str, Callable[..., Described]] = {
    "matmul": describe_matmul,
    "linear": describe_forward,
    "grouped_matmul": describe_grouped_matmul,
    "grouped_wgrad": describe_grouped_wgrad,
    "grouped_linear": describe_grouped_forward,
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
    if not isinstance(op, str) or op not in _DESCRIBE:
        raise ValueError(f"can_use: {sentence('op must be ' + ' or '.join(_DESCRIBE), repr(op))}")
    if not isinstance(arch, str):
        raise TypeError(f"can_use: {sentence('arch must be a name such as gfx950', repr(arch))}")
    stream = read_stream(kwargs.pop("stream", None))
    try:
        bound = inspect.signature(_DESCRIBE[op]).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"can_use: {op}: {error}") from None
    widened = _widened(bound.args[:2])
    if not isinstance(stream, Reason) and (known := kept_choices(op, bound.arguments, arch)) is not None:
        return Support.of(*known, _named(known[0], widened))
    problem, reasons = _DESCRIBE[op](*args, **kwargs)
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


def _widened(operands: tuple[Any, ...]) -> list[bool]:
    """Operands of 4 bits that are not yet kept as 8-bit ones."""
    return [isinstance(q, ScaledArray) and "mxfp8" not in q._kernel_scales for q in operands]


def _named(p: Problem, widened: list[bool]) -> list[str]:
    pairs = zip(p.named(), widened, strict=False)
    return [name for (name, x), new in pairs if x.widens and new]
