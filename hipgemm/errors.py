"""Exceptions, reasons, and the one way messages are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


class UnsupportedError(NotImplementedError):
    """A well-formed call that no kernel serves.

    Parameters
    ----------
    message : str
        What was asked for and why it cannot be done.
    reasons : sequence of Reason
        Every obstacle, not only the first.
    """

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
        What the runtime has to say about it: on the emulator the kernel, instruction and address.
    """

    def __init__(self, call: str, code: int, name: str, report: str = ""):
        super().__init__(f"{call}: {name} ({code})" + (f"\n{report}" if report else ""))
        self.call = call
        self.code = code
        self.name = name
        self.report = report


class KernelNotFoundError(RuntimeError):
    """No usable code object for the device: not built, not for this architecture, or damaged."""


class RuntimeNotFoundError(RuntimeError):
    """hip-python is missing, or no HIP runtime can be used: neither ROCm with a GPU nor the emulator."""


class RuntimeFallbackWarning(RuntimeWarning):
    """No GPU was found, so the emulator is used."""


class InterchangeError(BufferError, AttributeError):
    """An array has no form in the interchange protocol asked for.

    It is an AttributeError too, so that ``hasattr(x, "__cuda_array_interface__")`` says no.
    """


@dataclass(frozen=True)
class Reason:
    """One obstacle: what is required and what was got.

    Attributes
    ----------
    kind : type
        TypeError, ValueError, UnsupportedError or another exception: what the call raises.
    code : str
        A short stable word to count by, such as ``"shape"``.
    text : str
        The sentence, without the function's name.
    """

    kind: type[Exception]
    code: str
    text: str

    def __str__(self) -> str:
        return self.text


def sentence(required: str, got: object, context: str = "") -> str:
    """Write what is required, what was got, and what helps to understand it.

    >>> sentence("a.ndim must be 2", 1, "a.shape=(4,)")
    'a.ndim must be 2; got 1; a.shape=(4,)'
    """
    return f"{required}; got {got}" + (f"; {context}" if context else "")


def message(function: str, texts: Sequence[object]) -> str:
    """Write the message of an exception: one fault on its line, several as a list.

    >>> message("matmul", ["a.ndim must be 2; got 1"])
    'matmul: a.ndim must be 2; got 1'
    """
    if len(texts) == 1:
        return f"{function}: {texts[0]}"
    return f"{function}: {len(texts)} faults:" + "".join(f"\n  - {text}" for text in texts)


@contextmanager
def told_by(function: str) -> Iterator[None]:
    """Let what is said of missing kernels, or of sizes they do not take, begin with the function called."""
    try:
        yield
    except KernelNotFoundError as error:
        raise KernelNotFoundError(message(function, [error])) from error.__cause__
    except UnsupportedError as error:
        if error.reasons:  # these were told as they should be
            raise
        raise UnsupportedError(message(function, [error])) from None


def fault(kind: type[E], function: str, required: str, got: object, context: str = "") -> E:
    """Make the exception for a fault that comes alone; where there may be several, `Checks` collects them.

    >>> fault(ValueError, "matmul", "a.ndim must be 2", 1)
    ValueError('matmul: a.ndim must be 2; got 1')
    """
    return kind(message(function, [sentence(required, got, context)]))


def raise_reasons(function: str, reasons: Sequence[Reason]) -> None:
    """Raise what `reasons` call for, if there are any.

    The caller's mistakes come first: a TypeError, else a ValueError, and only a well-formed call is
    an UnsupportedError. Whichever is raised lists all of them.
    """
    if not reasons:
        return
    kinds = [reason.kind for reason in reasons]
    text = message(function, reasons)
    for kind in (TypeError, ValueError, *kinds):
        if kind in kinds and kind is not UnsupportedError:
            raise kind(text)
    raise UnsupportedError(text, reasons)


def read(function: str, x: T | Reason) -> T:
    """Return what was read, or raise what is wrong with it."""
    if isinstance(x, Reason):
        raise_reasons(function, [x])
    assert not isinstance(x, Reason)
    return x
