"""Runs assembly snippets under the sanitizers, many kernels to a code object.

A table of bodies is assembled once; each is then launched by name under the checks that are asked for, and
answers with the report, "" if the run was clean.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import asm
import numpy as np
import pytest


@contextmanager
def checks(names: str) -> Iterator[None]:
    """Enable checks for the launches and allocations in a block."""
    lib = asm.library()
    assert lib.hipgemm_emulator_set_check(names.encode()) == 0
    try:
        yield
    finally:
        lib.hipgemm_emulator_set_check(b"")


class Snippets:
    """Snippets by name, assembled together when the first of them runs. One with an instruction that the GPU
    does not have skips the test that wants it."""

    def __init__(self, kernels: Mapping[str, asm.Snippet]) -> None:
        self._lacking = {name: what for name, k in kernels.items() if (what := asm.lacks(k.body))}
        self._kernels = {name: k for name, k in kernels.items() if name not in self._lacking}

    @functools.cached_property
    def _module(self) -> asm.Module:
        return asm.Module(self._kernels)

    def module(self, name: str) -> asm.Module:
        """The module with this kernel."""
        if name in self._lacking:
            pytest.skip(f"{asm.ARCH} does not have {self._lacking[name]}")
        return self._module

    def report(self, name: str, check: str, *buffers: asm.Array, block: int = 64, grid: int = 1) -> str:
        """Launch under `check`; the buffers are there before, one of 4 KiB by default."""
        if not buffers:
            buffers = (np.zeros(1024, np.uint32),)
        with checks(check):
            try:
                self.module(name).run(name, *buffers, block=block, grid=grid)
            except asm.LaunchError as error:
                return error.report
        return ""


def note_texts() -> list[str]:
    """All notes of this process: messages of the checks that end no launch."""
    text = ctypes.create_string_buffer(4096)
    message: list[str] = []
    while asm.library().hipgemm_emulator_note(ctypes.c_uint64(len(message)), text, ctypes.c_size_t(4096)):
        message.append(text.value.decode())
    return message


def programs(kernels: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of kernels: one of those that differ in nothing but the formats that instructions name."""
    found: dict[str, str] = {}
    for kernel in kernels:
        rest = {key: value for key, value in kernel.items() if key not in ("name", "a", "b")}
        found.setdefault(json.dumps(rest, sort_keys=True), kernel["name"])
    return list(found.values())


def nops(states: int) -> str:
    """Instructions that count as so many wait states."""
    text = ""
    while states > 0:
        text += f"s_nop {min(states, 16) - 1}\n"
        states -= 16
    return text
