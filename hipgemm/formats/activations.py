"""Activations: their names, and their definitions in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Activation(NamedTuple):
    """An activation and its derivative."""

    function: Callable[[Floats], Floats]
    derivative: Callable[[Floats], Floats]


class GluActivation(NamedTuple):
    """A function of gate and up, and its derivatives by each."""

    function: Callable[[Floats, Floats], Floats]
    derivatives: Callable[[Floats, Floats], tuple[Floats, Floats]]


def sigmoid(x: Floats) -> Floats:
    """Return ``1 / (1 + exp(-x))``.

    >>> sigmoid(np.array([0.0, -1000.0]))
    array([0.5, 0. ])
    """
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, 1.0) / (1 + small))


def _sigmoid_derivative(x: Floats) -> Floats:
    return sigmoid(x) * sigmoid(-x)


def _normal_distribution(t: Floats) -> Floats:
    erfc: Any = np.frompyfunc(math.erfc, 1, 1)
    return np.asarray(erfc(-t / math.sqrt(2)), np.float64) / 2


def _curved(t: Floats) -> Floats:
    """Return t, clamped to where derivatives are 0 or 1: an infinite t has no product with 0."""
    return np.clip(t, -1e3, 1e3)


def _gelu_derivative(t: Floats) -> Floats:
    at = _curved(t)
    return _normal_distribution(t) + at * np.exp(-at * at / 2) / math.sqrt(2 * math.pi)


_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def _gelu_tanh(t: Floats) -> Floats:
    at = _curved(t)
    return t * sigmoid(at * (_LINEAR + _CUBIC * at * at))


def _gelu_tanh_derivative(t: Floats) -> Floats:
    at = _curved(t)
    x = at * (_LINEAR + _CUBIC * at * at)
    return sigmoid(x) + at * (_LINEAR + 3 * _CUBIC * at * at) * _sigmoid_derivative(x)


def _silu_derivative(t: Floats) -> Floats:
    return sigmoid(t) + _curved(t) * _sigmoid_derivative(t)


ACTIVATIONS = {
    "relu": Activation(lambda t: np.maximum(t, 0), lambda t: np.where(np.isnan(t), t, t > 0)),
    "gelu": Activation(lambda t: t * _normal_distribution(t), _gelu_derivative),
    "gelu_tanh": Activation(_gelu_tanh, _gelu_tanh_derivative),
    "silu": Activation(lambda t: t * sigmoid(t), _silu_derivative),
}

_SLOPE, _LIMIT = 1.702, 7.0  # of gpt-oss


def _swiglu_oss(gate: Floats, up: Floats) -> Floats:
    x = np.minimum(gate, _LIMIT)
    return x * sigmoid(_SLOPE * x) * (np.clip(up, -_LIMIT, _LIMIT) + 1)


def _swiglu_oss_derivatives(gate: Floats, up: Floats) -> tuple[Floats, Floats]:
    x = np.minimum(gate, _LIMIT)
    by_gate = sigmoid(_SLOPE * x) + _SLOPE * _curved(x) * _sigmoid_derivative(_SLOPE * x)
    by_gate = by_gate * (np.clip(up, -_LIMIT, _LIMIT) + 1)
    return np.where(gate > _LIMIT, 0, by_gate), np.where(np.abs(up) > _LIMIT, 0, x * sigmoid(_SLOPE * x))


GLU_ACTIVATIONS = {"swiglu_oss": GluActivation(_swiglu_oss, _swiglu_oss_derivatives)}
GLUS = ("interleaved", "halves")  # which columns are gate and up
