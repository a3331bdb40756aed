"""Exceptions, reasons, and the form of error messages."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)
_SHOWN = 200  # characters
_PACKAGE = str(Path(__file__).parent)


class UnsupportedError(NotImplementedError):
    """A valid call that no kernel supports.

    Parameters
    ----------
    message : str
        What was requested and why it is not supported.
    reasons : sequence of Reason
        Every reason, not only the first.
    """

    _texts: Sequence[object] = ()  # of the message, without the function's name

    def __init__(self, message: str, reasons: Sequence[Reason] = ()):
        super().__init__(message)
        self.reasons = tuple(reasons)


class HipError(RuntimeError):
    """A HIP call failed.

    Parameters
    ----------
    call : str
        The HIP function, for example ``hipMemcpyAsync``.
    code : int
        The HIP error code.
    name : str
        Its name, for example ``hipErrorIllegalAddress``.
    report : str
        Details from the runtime. The emulator gives the kernel, instruction and address.
    """

    def __init__(self, call: str, code: int, name: str, report: str = ""):
        super().__init__(f"{call}: {name} ({code})" + (f"\n{report}" if report else ""))
        self.call = call
        self.code = code
        self.name = name
        self.report = report

    def __reduce__(self) -> tuple[type[HipError], tuple[str, int, str, str]]:
        return type(self), (self.call, self.code, self.name, self.report)


class KernelNotFoundError(RuntimeError):
    """No usable code object for the device: not built, not for this architecture, or damaged."""

    _texts: Sequence[object] = ()


class RuntimeNotFoundError(RuntimeError):
    """hip-python is missing, or no HIP runtime can be used: neither ROCm with a GPU nor the emulator."""


class RuntimeFallbackWarning(RuntimeWarning):
    """No GPU was found, so the emulator is used."""


class PlainKernelWarning(RuntimeWarning):
    """The GPU has no matrix kernels for a product, so the plain kernel serves it: correctly, but slowly."""


class InterchangeError(BufferError, AttributeError):
    """An array cannot be represented in the requested interchange protocol.

    It is also an AttributeError, so that ``hasattr(x, "__cuda_array_interface__")`` is False.
    """


@dataclass(frozen=True)
class Reason:
    """One reason why a call fails: what is required, and what was given.

    Attributes
    ----------
    kind : type
        The exception that the call raises: TypeError, ValueError, UnsupportedError or another.
    code : str
        A short stable identifier, such as ``"shape"``, for counting.
    text : str
        The message, without the function's name.
    """

    kind: type[Exception]
    code: str
    text: str

    def __str__(self) -> str:
        return self.text


def requirement(required: str, got: object, context: str = "") -> str:
    """Format a message: what is required, what was given, and optional context.

    >>> requirement("a.ndim must be 2", 1, "a.shape=(4,)")
    'a.ndim must be 2; got 1; a.shape=(4,)'
    """
    given = got if isinstance(got, str) else shown(got, str)
    return f"{required}; got {given}" + (f"; {context}" if context else "")


def shown(x: object, form: Callable[[object], str] = repr) -> str:
    """Format an argument for a message, in at most 200 characters. Never raises.

    >>> shown("yes"), len(shown(10**300))
    ("'yes'", 200)
    """
    try:
        text = form(x)
    except Exception:  # of the object itself, or an int of too many digits
        return f"an object of type {type(x).__qualname__}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def message(function: str, texts: Sequence[object]) -> str:
    """Format the message of an exception: one fault on the same line, several as a list.

    >>> message("matmul", ["a.ndim must be 2; got 1"])
    'matmul: a.ndim must be 2; got 1'
    """
    if len(texts) == 1:
        return f"{function}: {texts[0]}"
    return f"{function}: {len(texts)} faults:" + "".join(f"\n  - {text}" for text in texts)


@contextmanager
def error_context(function: str) -> Iterator[None]:
    """Prefix errors about missing kernels or unsupported sizes with the name of the called function.

    That name replaces those of public functions that it calls.
    """
    try:
        yield
    except (KernelNotFoundError, UnsupportedError) as error:
        reasons = error.reasons if isinstance(error, UnsupportedError) else ()
        texts = reasons or error._texts or [str(error)]
        text = message(function, texts)
        unsupported = isinstance(error, UnsupportedError)
        named = UnsupportedError(text, reasons) if unsupported else KernelNotFoundError(text)
        named._texts = texts
        raise named from error.__cause__


def fault(kind: type[E], function: str, required: str, got: object, context: str = "") -> E:
    """Make the exception for a single fault. `Checks` collects several.

    >>> fault(ValueError, "matmul", "a.ndim must be 2", 1)
    ValueError('matmul: a.ndim must be 2; got 1')
    """
    return kind(message(function, [requirement(required, got, context)]))


def raise_reasons(function: str, reasons: Sequence[Reason]) -> None:
    """Raise the exception for `reasons`, if there are any.

    A TypeError takes precedence over a ValueError, and both over an UnsupportedError. Whichever is
    raised lists all reasons.
    """
    if not reasons:
        return
    kinds = [reason.kind for reason in reasons]
    text = message(function, reasons)
    for kind in (TypeError, ValueError, *kinds):
        if kind in kinds and kind is not UnsupportedError:
            raise kind(text)
    raise UnsupportedError(text, reasons)


def value_or_raise(function: str, x: T | Reason) -> T:
    """Return a parsed value; if it is a reason instead, raise it."""
    if isinstance(x, Reason):
        raise_reasons(function, [x])
    assert not isinstance(x, Reason)
    return x


def warn(category: type[Warning], text: str) -> None:
    """Warn in one line, without a source line: the first caller is not the cause."""
    frame: FrameType | None = sys._getframe()
    while frame and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    location = (frame.f_code.co_filename, frame.f_lineno) if frame else ("hipgemm", 0)
    before = warnings.formatwarning
    if before.__module__ == "warnings":  # not replaced by the application
        warnings.formatwarning = lambda message, category, *rest: f"{category.__name__}: {message}\n"
    try:
        warnings.warn_explicit(text, category, *location)
    finally:
        warnings.formatwarning = before
