"""Hatchling hook: a wheel carries the code objects and the emulator, which `make` builds."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TextIO

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeParts(BuildHookInterface):  # type: ignore[misc]
    """Runs `make kernels-all emulator-all` with the Python of the build environment."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """The toolchain, where this hook is going to build (one pin, in pyproject's `build` extra)."""
        if _make_builds_by_itself():
            return []
        extras: dict[str, list[str]] = self.metadata.core.optional_dependencies
        return extras["build"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build; tag the wheel for this platform (the emulator is native) and any Python 3."""
        if not _make_builds_by_itself():
            _build(self.root)
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


def _build(root: str) -> None:
    """Run make; print what it builds on the terminal, from which pip hides it, or without one to pip."""
    command = ["make", "-C", root, "--no-print-directory", "kernels-all", "emulator-all"]
    lines: list[str] = []
    started = time.monotonic()
    with (
        _terminal() as output,
        subprocess.Popen(
            command,
            env=os.environ
            | {"BUILD_PYTHON": sys.executable},  # as it is: make expands what is on its command line
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as make,
    ):
        assert make.stdout is not None
        for line in make.stdout:
            lines.append(line)
            start = "\r" * output.isatty()  # over what pip shows while it waits
            print(f"{start}hipgemm: {line}", end="", file=output, flush=True)
        if make.wait():
            sys.exit(f"hipgemm: {' '.join(command)} failed:\n{''.join(lines[-100:])}")
        print(f"hipgemm: built in {time.monotonic() - started:.0f} s", file=output)


def _terminal() -> AbstractContextManager[TextIO]:
    try:
        return open("/dev/tty", "w")
    except OSError:
        return nullcontext(sys.stderr)


def _make_builds_by_itself() -> bool:
    """Say whether `make` installs in editable mode and builds the native parts as targets of its own."""
    return os.environ.get("HIPGEMM_SKIP_NATIVE") == "1"
