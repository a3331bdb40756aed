import pickle

import pytest

from hipgemm.errors import (
    HipError,
    InterchangeError,
    KernelNotFoundError,
    Reason,
    RuntimeNotFoundError,
    UnsupportedError,
    message,
    raise_reasons,
    requirement,
    shown,
)


def reason(kind: type[Exception], text: str) -> Reason:
    return Reason(kind, "code", text)


def test_one_fault_is_one_line():
    with pytest.raises(ValueError, match=r"^matmul: a must be b; got c; because$"):
        raise_reasons("matmul", [reason(ValueError, requirement("a must be b", "c", "because"))])


def test_no_fault_is_silent():
    raise_reasons("matmul", [])


@pytest.mark.parametrize(
    ("kinds", "raised"),
    [
        ([UnsupportedError, ValueError], ValueError),
        ([ValueError, TypeError, UnsupportedError], TypeError),
        ([UnsupportedError], UnsupportedError),
    ],
)
def test_the_caller_s_mistakes_win_and_all_are_listed(kinds, raised):
    with pytest.raises(raised) as caught:
        raise_reasons("matmul", [reason(kind, f"fault {i}") for i, kind in enumerate(kinds)])
    assert type(caught.value) is raised
    for i in range(len(kinds)):
        assert f"fault {i}" in str(caught.value)


def test_unsupported_carries_reasons():
    reasons = [reason(UnsupportedError, "x"), reason(UnsupportedError, "y")]
    with pytest.raises(UnsupportedError) as caught:
        raise_reasons("matmul", reasons)
    assert caught.value.reasons == tuple(reasons)
    assert isinstance(caught.value, NotImplementedError)
    assert message("matmul", reasons) == str(caught.value) == "matmul: 2 faults:\n  - x\n  - y"


def test_hip_error_holds_its_parts():
    error = HipError("hipMalloc", 2, "hipErrorOutOfMemory", "the report")
    assert (error.call, error.code, error.name, error.report) == (
        "hipMalloc",
        2,
        "hipErrorOutOfMemory",
        "the report",
    )
    assert str(error) == "hipMalloc: hipErrorOutOfMemory (2)\nthe report"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(protocol):
    """As between processes."""
    reasons = [reason(UnsupportedError, "x"), reason(TypeError, "y")]
    for error in (
        HipError("hipMalloc", 2, "hipErrorOutOfMemory", "the report"),
        UnsupportedError("matmul: x", reasons),
        InterchangeError("asarray: x"),
        KernelNotFoundError("x"),
        RuntimeNotFoundError("x"),
    ):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


class Mute:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (1.5, "1.5"),
        ("a", "'a'"),
        ("a" * 300, "'" + "a" * 196 + "..."),
        (10**5000, "an object of type int"),
        (Mute(), "an object of type Mute"),
    ],
    ids=["number", "text", "long", "huge", "mute"],
)
def test_arguments_in_messages(x, text):
    assert shown(x) == text
    assert requirement("x must be small", x).startswith("x must be small; got ")


def test_families():
    assert issubclass(InterchangeError, BufferError)
    assert issubclass(InterchangeError, AttributeError)
    assert issubclass(HipError, RuntimeError)
    assert issubclass(KernelNotFoundError, RuntimeError)
    assert issubclass(RuntimeNotFoundError, RuntimeError)
