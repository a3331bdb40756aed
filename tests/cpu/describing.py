"""Descriptions of calls, made as the public functions are called."""

import inspect
from typing import Any

import hipgemm as hg
from hipgemm.products.operation import GROUPED_MATMUL, GROUPED_WGRAD, MATMUL, Arguments, Operation
from hipgemm.products.problem import Described, describe


def _described(op: Operation, *args: Any, **kwargs: Any) -> Described:
    given = inspect.signature(getattr(hg, op.name)).bind(*args, **kwargs).arguments
    return describe(op, Arguments.named(op, given))


def describe_matmul(*args: Any, **kwargs: Any) -> Described:
    return _described(MATMUL, *args, **kwargs)


def describe_grouped_matmul(*args: Any, **kwargs: Any) -> Described:
    return _described(GROUPED_MATMUL, *args, **kwargs)


def describe_grouped_wgrad(*args: Any, **kwargs: Any) -> Described:
    return _described(GROUPED_WGRAD, *args, **kwargs)
