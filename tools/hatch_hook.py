"""Hatchling hook: a wheel carries the code objects and the emulator, which `make` builds."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeParts(BuildHookInterface):  # type: ignore[misc]
    """Runs `make kernels emulator` with the Python of the build environment."""

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
            subprocess.run(
                ["make", "-C", self.root, "kernels", "emulator", f"BUILD_PYTHON={sys.executable}"],
                check=True,
                stdout=sys.stderr,
            )
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


def _make_builds_by_itself() -> bool:
    """Say whether `make` installs in editable mode and builds the native parts as targets of its own."""
    return os.environ.get("HIPGEMM_SKIP_NATIVE") == "1"
