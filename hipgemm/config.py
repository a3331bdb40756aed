"""The settings of this process: read from the environment once, and changed by `hipgemm.config`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .errors import sentence

RUNTIMES = ("auto", "rocm", "emulator", "bridge")


@dataclass(frozen=True)
class Setting:
    """One setting: its variable, its meaning, and how its text is read."""

    variable: str
    meaning: str
    read: Callable[[str, str], Any]  # name for messages, text


def _runtime(name: str, text: str) -> str:
    mode = text.lower() or "auto"
    if mode not in RUNTIMES:
        raise ValueError(sentence(f"{name} must be one of {', '.join(RUNTIMES)}", repr(mode)))
    return mode


def _kernel(name: str, text: str) -> str | None:
    return text or None  # which names there are depends on the architecture: checked where one is chosen


def _switch(default: bool) -> Callable[[str, str], bool]:
    def read(name: str, text: str) -> bool:
        known = {"": default, "on": True, "1": True, "off": False, "0": False}
        if text.lower() not in known:
            raise ValueError(sentence(f"{name} must be on or off", repr(text)))
        return known[text.lower()]

    return read


def _report(name: str, text: str) -> bool:
    return text not in ("", "0")


def _gpu_aware(name: str, text: str) -> bool:
    if text not in ("", "0", "1"):
        raise ValueError(sentence(f"{name} must be 0 or 1", repr(text)))
    return text == "1"


def _bytes(name: str, text: str) -> int | None:
    plain = text.strip().upper().removesuffix("B").removesuffix("I")
    if not plain:
        return None
    unit = {"K": 10, "M": 20, "G": 30}.get(plain[-1], 0)
    digits = plain[:-1] if unit else plain
    if not (digits.isascii() and digits.isdigit()):
        required = f"{name} must be a number of bytes, such as 500000000, 512M or 16G"
        raise ValueError(sentence(required, repr(text)))
    return int(digits) << unit


SETTINGS = {
    "runtime": Setting("HIPGEMM_RUNTIME", "which HIP library: auto, rocm, emulator or bridge", _runtime),
    "kernel": Setting("HIPGEMM_KERNEL", "the only kernel for products: plain, or a kernel's name", _kernel),
    "report": Setting("HIPGEMM_REPORT", "whether to print usage() when the process ends", _report),
    "pool": Setting("HIPGEMM_POOL", "whether freed device memory is kept for reuse", _switch(True)),
    "memory_limit": Setting("HIPGEMM_MEMORY_LIMIT", "the most bytes to hold on each device", _bytes),
    "cache_limit": Setting("HIPGEMM_CACHE_LIMIT", "the most unused bytes to keep on each device", _bytes),
    "mpi_gpu": Setting("HIPGEMM_MPI_GPU", "whether the MPI library reads device memory itself", _gpu_aware),
}


class Config:
    """The settings of this process, as attributes; called to change some.

    The environment is read once, at the first use of any setting. Settings belong to the process, not to a
    thread. `runtime`, `pool` and the limits count when the first device is used; changing one of them later
    is an error (`limit_memory` changes limits at any time).

    Attributes
    ----------
    runtime : str
        HIPGEMM_RUNTIME: ``"auto"``, ``"rocm"``, ``"emulator"`` or ``"bridge"``.
    kernel : str or None
        HIPGEMM_KERNEL: the only kernel for products; ``"plain"`` for the one that takes anything.
    report : bool
        HIPGEMM_REPORT: print `usage` when the process ends.
    pool : bool
        HIPGEMM_POOL: keep freed device memory for reuse.
    memory_limit, cache_limit : int or None
        HIPGEMM_MEMORY_LIMIT, HIPGEMM_CACHE_LIMIT: bytes on each device.
    mpi_gpu : bool
        HIPGEMM_MPI_GPU: the MPI library reads device memory itself.

    Examples
    --------
    >>> import hipgemm as hg
    >>> with hg.config(kernel="plain"):
    ...     hg.config.kernel
    'plain'
    """

    runtime: str
    kernel: str | None
    report: bool
    pool: bool
    memory_limit: int | None
    cache_limit: int | None
    mpi_gpu: bool

    def __init__(self) -> None:
        self._texts: dict[str, str] | None = None
        self._fixed: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        """Read a setting at its first use; then it is an attribute."""
        if name not in SETTINGS:
            raise AttributeError(f"config has no setting {name!r}; there are {', '.join(SETTINGS)}")
        if self._texts is None:
            self._texts = {s.variable: os.environ.get(s.variable, "") for s in SETTINGS.values()}
        setting = SETTINGS[name]
        value = setting.read(setting.variable, self._texts[setting.variable])
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SETTINGS:
            self(**{name: value})
        elif name.startswith("_"):
            super().__setattr__(name, value)
        else:
            raise AttributeError(f"config has no setting {name!r}; there are {', '.join(SETTINGS)}")

    def __call__(self, **changes: Any) -> Change:
        """Change settings now; used by ``with``, until its end.

        Parameters
        ----------
        **changes
            Settings by name. Numbers of bytes may be text, such as ``"16G"``.

        Returns
        -------
        Change
            What restores the former settings at the end of a ``with`` block.

        Raises
        ------
        TypeError, ValueError
            For a setting that does not exist, a value that it does not take, or a change that comes too late.
        """
        wanted, known = {}, ", ".join(SETTINGS)
        for name, value in changes.items():
            if name not in SETTINGS:
                raise TypeError(f"config: {sentence(f'settings must be {known}', repr(name))}")
            if value is not None and not isinstance(value, (str, int)):
                raise TypeError(f"config: {sentence(f'{name} must be text, a number or None', repr(value))}")
            text = "" if value is None else str(int(value)) if isinstance(value, int) else value
            wanted[name] = SETTINGS[name].read(f"config: {name}", text)
            if name in self._fixed and wanted[name] != getattr(self, name):
                raise ValueError(f"config: {name} cannot be changed any more: {self._fixed[name]}")
        before = {name: getattr(self, name) for name in wanted}
        self.__dict__.update(wanted)
        return Change(self, before)

    def fix(self, why: str, *names: str) -> None:
        """Refuse to change settings from now on, since something was built on them."""
        self._fixed.update(dict.fromkeys(names, why))

    def __repr__(self) -> str:
        return f"config({', '.join(f'{name}={getattr(self, name)!r}' for name in SETTINGS)})"


class Change:
    """Settings that were changed; a context manager that restores them."""

    def __init__(self, config: Config, before: dict[str, Any]) -> None:
        self._config, self._before = config, before

    def __enter__(self) -> Config:
        return self._config

    def __exit__(self, *_: object) -> None:
        self._config.__dict__.update(self._before)


config = Config()


def variable(name: str) -> str | None:
    """Return another variable of the environment as it is now; None where there is none."""
    return os.environ.get(name)


@contextmanager
def environment(**values: str | None) -> Iterator[dict[str, str]]:
    """Set variables (or unset them, by None) that libraries read for themselves; yields all there are."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield dict(os.environ)
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
