"""The settings of the process: read from the environment once, and changed by `hipgemm.config`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from .errors import Reason, raise_reasons, requirement, shown

RUNTIMES = ("auto", "rocm", "emulator", "bridge")


@dataclass(frozen=True)
class Setting:
    """A setting: its environment variable, and the parser of its text."""

    variable: str
    parse: Callable[[str, str], Any]  # (name for messages, text) -> value or Reason
    numbers: bool = True  # whether `config` also accepts numbers, True and False


def _one_of(required: str, known: dict[str, Any]) -> Callable[[str, str], Any]:
    """A parser for one of several words."""
    return lambda name, text: known.get(text.lower(), _wrong(f"{name} must be {required}", text))


def _kernel(name: str, text: str) -> str | None:
    return text or None  # the names depend on the architecture; kernel selection checks them


def _path(name: str, text: str) -> str | None:
    return text or None


def _report(name: str, text: str) -> bool:
    return text not in ("", "0")


def _bytes(name: str, text: str) -> int | Reason | None:
    plain = text.strip().upper().removesuffix("B").removesuffix("I")
    if not plain:
        return None
    unit = {"K": 10, "M": 20, "G": 30}.get(plain[-1], 0)
    digits = plain[:-1] if unit else plain
    if digits.isascii() and digits.isdigit():
        return int(digits) << unit
    return _wrong(f"{name} must be a number of bytes, such as 500000000, 512M or 16G", text)


def _wrong(required: str, text: str) -> Reason:
    return Reason(ValueError, "setting", requirement(required, shown(text)))


_SWITCH = {"": True, "on": True, "1": True, "off": False, "0": False}
SETTINGS = {
    "runtime": Setting(
        "HIPGEMM_RUNTIME",
        _one_of(f"one of {', '.join(RUNTIMES)}", {"": "auto"} | {word: word for word in RUNTIMES}),
        numbers=False,
    ),
    "kernel": Setting("HIPGEMM_KERNEL", _kernel, numbers=False),
    "report": Setting("HIPGEMM_REPORT", _report),
    "pool": Setting("HIPGEMM_POOL", _one_of("on or off", _SWITCH)),
    "memory_limit": Setting("HIPGEMM_MEMORY_LIMIT", _bytes),
    "cache_limit": Setting("HIPGEMM_CACHE_LIMIT", _bytes),
    "mpi_gpu": Setting("HIPGEMM_MPI_GPU", _one_of("0 or 1", {"": False, "0": False, "1": True})),
    "progress": Setting("HIPGEMM_PROGRESS", _one_of("on or off", _SWITCH)),
    "failed_primitives": Setting(
        "HIPGEMM_FAILED_PRIMITIVES",
        _one_of("refuse or ignore", {"": "refuse", "refuse": "refuse", "ignore": "ignore"}),
        numbers=False,
    ),
    "tuned": Setting(
        "HIPGEMM_TUNED",
        _one_of("use or ignore", {"": "use", "use": "use", "ignore": "ignore"}),
        numbers=False,
    ),
    "shapes": Setting("HIPGEMM_SHAPES", _path, numbers=False),
    "cache_dir": Setting("HIPGEMM_CACHE_DIR", _path, numbers=False),
}


class Config:
    """The settings of the process, as attributes. Call it to change settings.

    The environment is read once, at the first use of a setting. Settings are shared by all threads.
    `runtime`, `pool` and the limits are fixed at the first use of a device; changing them later is an error.
    Use `limit_memory` to change limits at any time.

    Attributes
    ----------
    runtime : str
        HIPGEMM_RUNTIME: ``"auto"``, ``"rocm"``, ``"emulator"`` or ``"bridge"``.
    kernel : str or None
        HIPGEMM_KERNEL: the only kernel to use for products; ``"plain"`` is the slow general kernel.
    report : bool
        HIPGEMM_REPORT: print `usage` at the end of the process.
    pool : bool
        HIPGEMM_POOL: hold freed device memory for reuse.
    memory_limit, cache_limit : int or None
        HIPGEMM_MEMORY_LIMIT, HIPGEMM_CACHE_LIMIT: bytes per device.
    mpi_gpu : bool
        HIPGEMM_MPI_GPU: the MPI library is GPU-aware and accesses device memory.
    progress : bool
        HIPGEMM_PROGRESS: report the progress of `save` and `load` on standard error, after a second.
    failed_primitives : str
        HIPGEMM_FAILED_PRIMITIVES: ``"refuse"`` or ``"ignore"`` kernels that rest on what
        ``python -m hipgemm selftest --primitives`` found wrong on the device.
    tuned : str
        HIPGEMM_TUNED: ``"use"`` or ``"ignore"`` what ``python -m hipgemm tune`` measured on the device. The
        measurements are read at the first product, and the setting is fixed then.
    shapes : str or None
        HIPGEMM_SHAPES: a file that gets the shapes of all products at the end of the process, for ``tune``.
    cache_dir : str or None
        HIPGEMM_CACHE_DIR: where results about devices are kept; by default in the user's cache folder.

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
    progress: bool
    failed_primitives: str
    tuned: str
    shapes: str | None
    cache_dir: str | None

    def __init__(self) -> None:
        self._texts: dict[str, str] | None = None
        self._fixed: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        """Parse a setting at its first use and store it as an attribute."""
        if name not in SETTINGS:
            raise self._unknown(name)
        value = self.find(name)
        if isinstance(value, Reason):
            raise value.kind(value.text)
        return value

    def find(self, name: str) -> Any:
        """Return a setting, or a Reason if its variable is invalid."""
        if name not in self.__dict__:
            if self._texts is None:
                self._texts = {s.variable: os.environ.get(s.variable, "") for s in SETTINGS.values()}
            setting = SETTINGS[name]
            value = setting.parse(setting.variable, self._texts[setting.variable])
            if isinstance(value, Reason):
                return value
            self.__dict__[name] = value
        return self.__dict__[name]

    def _unknown(self, name: str) -> AttributeError:
        return AttributeError(f"config has no setting {name!r}; there are {', '.join(SETTINGS)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SETTINGS:
            self(**{name: value})
        elif name.startswith("_"):
            super().__setattr__(name, value)
        else:
            raise self._unknown(name)

    def __call__(self, **changes: Any) -> Change:
        """Change settings; in a ``with`` statement, until its end.

        The change is made by the call, since it cannot see whether a block follows. An exception of a signal
        handler, such as Ctrl-C, between the call and the block leaves the new values.

        Parameters
        ----------
        **changes
            Settings by name. A number of bytes may be text, such as ``"16G"``; None is the default.

        Returns
        -------
        Change
            A context manager that restores the previous settings.

        Raises
        ------
        TypeError, ValueError
            For unknown settings, invalid values, or settings that are fixed. The message lists all faults,
            and nothing is changed.
        """
        wanted = {name: self._parse(name, value) for name, value in changes.items()}
        raise_reasons("config", [value for value in wanted.values() if isinstance(value, Reason)])
        change = Change(self, {name: self.__dict__.get(name, _UNREAD) for name in wanted})
        try:
            self.__dict__.update(wanted)
            return change
        except BaseException:  # of a signal handler
            change.restore()
            raise

    def _parse(self, name: str, value: Any) -> Any:
        if name not in SETTINGS:
            required = f"a setting must be one of {', '.join(SETTINGS)}"
            return Reason(TypeError, "setting", requirement(required, shown(name)))
        setting, text = SETTINGS[name], "" if value is None else value
        if setting.numbers and isinstance(text, Integral):
            text = shown(int(text), str)
        if not isinstance(text, str):
            required = f"{name} must be {'text, a number' if setting.numbers else 'text'} or None"
            return Reason(TypeError, "setting", requirement(required, shown(value)))
        found = setting.parse(name, text)
        if name in self._fixed and not isinstance(found, Reason) and found != self.__dict__[name]:
            advice = "hipgemm.limit_memory changes it at any time" if name.endswith("_limit") else ""
            required = f"{name} must be set before {self._fixed[name]}, and is {self.__dict__[name]!r} now"
            return Reason(ValueError, "setting", requirement(required, shown(value), advice))
        return found

    def fix(self, before: str, *names: str) -> None:
        """Fix settings: later changes are errors."""
        for name in names:
            self._fixed[name] = before
            getattr(self, name)

    def __repr__(self) -> str:
        return f"config({', '.join(f'{name}={getattr(self, name)!r}' for name in SETTINGS)})"


class Change:
    """Changed settings; a context manager that restores them, except those that were fixed since."""

    def __init__(self, config: Config, before: dict[str, Any]) -> None:
        self._entered = False
        self._config, self._before = config, before

    def __enter__(self) -> Config:
        self._entered = True
        return self._config

    def __exit__(self, *_: object) -> None:
        self.restore()

    def __del__(self) -> None:
        if self._entered:  # and a signal handler raised when the block ended
            self.restore()

    def restore(self) -> None:
        """Restore the former settings."""
        values = self._config.__dict__
        for name, value in self._before.items():
            if name in self._config._fixed:
                continue
            if value is _UNREAD:  # parsed at its first use
                values.pop(name, None)
            else:
                values[name] = value
        self._entered = False


_UNREAD = object()
config = Config()


def variable(name: str) -> str | None:
    """Return the current value of another environment variable; None if it is not set."""
    return os.environ.get(name)


@contextmanager
def environment(**values: str | None) -> Iterator[dict[str, str]]:
    """Set environment variables for libraries (None unsets one); yields the whole environment."""
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
