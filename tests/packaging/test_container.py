"""The container file: its instructions, executed in a temporary folder instead of /opt/hipgemm."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker" / "rocm7.Dockerfile"
HOME = "/opt/hipgemm"  # where the file writes


def instructions() -> Iterator[tuple[str, str]]:
    """Each instruction's name and the rest of it, continued lines joined."""
    text = "".join(line for line in FILE.read_text().splitlines(True) if not line.startswith("#"))
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def test_nothing_that_was_built_outside_gets_into_the_image() -> None:
    def patterns(name: str) -> list[str]:
        lines = (ROOT / name).read_text().splitlines()
        return [line for line in lines if line and not line.startswith("#")]

    # Where git's pattern has no slash but at its end, it holds in every folder.
    ignored = [line.rstrip("/") for line in patterns(".gitignore")]
    wanted = [line.lstrip("/") if "/" in line else f"**/{line}" for line in ignored]
    assert sorted(patterns(".dockerignore")) == sorted([*wanted, ".git"])


def test_its_instructions_install_a_package_that_runs(tmp_path: Path) -> None:
    """All but apt-get's, whose packages the test suite needs too; nothing is built twice."""

    def here(text: str) -> str:
        return text.replace(HOME, str(tmp_path))

    kept = ("HOME", "LANG", "TMPDIR", "PIP_CERT", "PIP_INDEX_URL", "HTTPS_PROXY", "https_proxy")
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    variables["PIP_NO_COMPILE"] = "0"  # pip's way to say: do not; it takes as long as all else
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # its python3 is this one
    cwd, command, printed = tmp_path, [], ""

    def run(arguments: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments, cwd=cwd, env=variables | more, capture_output=True, text=True, check=False
        )

    for name, rest in instructions():
        if name == "ENV":
            variable, value = here(rest).split("=", 1)
            variables[variable] = re.sub(r"\$(\w+)", lambda found: variables[found[1]], value)
        elif name == "WORKDIR":
            cwd = Path(here(rest))
        elif name == "COPY":
            source, target = ROOT / rest.split()[0], Path(here(rest.split()[1]))
            if source.is_dir():
                left_out = shutil.ignore_patterns(".git", ".venv*", "dist", "__pycache__", ".*_cache")
                shutil.copytree(source, target, ignore=left_out)
            else:
                shutil.copy(source, target)
        elif name == "RUN" and rest.startswith("apt-get"):
            packages = re.findall(r"[\w.-]+", rest.partition("--no-install-recommends")[2].partition("&&")[0])
            assert packages == ["make", "python3-venv"]
        elif name == "RUN":
            done = run(["sh", "-c", here(rest)])
            assert done.returncode == 0, f"RUN {rest}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            printed = done.stdout
        elif name == "CMD":
            command = json.loads(rest)
        else:
            assert name in ("ARG", "FROM"), f"{name}: not known here"
    assert re.search(r"^runtime +emulator +" + re.escape(str(tmp_path)), printed, re.MULTILINE)
    assert re.search(r"^hip-python +7\.", printed, re.MULTILINE)
    assert "kernels     gfx950: " in printed
    # Without a GPU the image's command says so, and does not run on the emulator.
    found = run(command, ROCM_PATH="/nowhere")
    assert found.returncode == 1
    assert re.search(r"^runtime +none$", found.stdout, re.MULTILINE)
    assert re.search(r"^problem +.+ \(HIPGEMM_RUNTIME=rocm\)$", found.stdout, re.MULTILINE)
