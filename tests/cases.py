"""Many cases in one test, for those that take a few milliseconds: pytest's own work for a test takes two."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
FAILURES = (Exception, pytest.fail.Exception)


def each(
    names: str, cases: Iterable[Any], *, by: str | None = None, ids: Callable[[Any], str] = str
) -> Callable[[Any], Any]:
    """Try a test with each case, and report all that fail: as `pytest.mark.parametrize` of one test.

    With `by`, the name of an argument, there is a test for each value of it. Fixtures are made once for all
    cases of a test. A case cannot be skipped.
    """
    arguments = [name.strip() for name in names.split(",")]
    listed = [dict(zip(arguments, _values(case, arguments), strict=True)) for case in cases]

    def named(case: dict[str, Any]) -> str:
        return "-".join(ids(value) for name, value in case.items() if name != by)

    def decorate(test: Callable[..., None]) -> Any:
        @functools.wraps(test)
        def tried(**fixtures: Any) -> None:
            wanted = [case for case in listed if by is None or case[by] == fixtures[by]]
            try_each(wanted, lambda case: test(**fixtures | case), named)

        signature = inspect.signature(test)
        wanted = [x for name, x in signature.parameters.items() if name == by or name not in arguments]
        tried.__signature__ = signature.replace(parameters=wanted)  # type: ignore[attr-defined]
        if by is None:
            return tried
        values = list(dict.fromkeys(case[by] for case in listed))
        return pytest.mark.parametrize(by, values, ids=ids)(tried)

    return decorate


def try_each(cases: Iterable[T], test: Callable[[T], None], name: Callable[[T], str] = str) -> None:
    """Try all cases, and report those that fail."""
    failed: dict[str, BaseException] = {}
    for case in cases:
        try:
            test(case)
        except FAILURES as error:
            failed[name(case)] = error
    if failed:
        lines = [f"{which}: {type(error).__name__}: {error}" for which, error in failed.items()]
        raise AssertionError("\n".join(lines)) from next(iter(failed.values()))


def _values(case: Any, arguments: Sequence[str]) -> Sequence[Any]:
    return (case,) if len(arguments) == 1 else case
