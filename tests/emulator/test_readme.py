"""emulator/README.md and docs/trust/emulator.md: their programs run as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from asm import ARCH

from hipgemm.runtime.loader import EMULATOR

ROOT = Path(__file__).parents[2]
README = (ROOT / "emulator/README.md").read_text()
OWN = (ROOT / "docs/trust/emulator.md").read_text().split("## A kernel of your own")[1].split("\n## ")[0]


def blocks(language: str, text: str) -> list[str]:
    """The blocks of code in a language."""
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def block(language: str, text: str = README) -> str:
    (found,) = blocks(language, text)
    return found


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HIPGEMM_")}
    return subprocess.run(
        command, cwd=folder, env=clean | environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code object, and the library where the README has it."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "scale.hip").write_text(block("c++"))
    for command in block("sh").splitlines():
        done = run(folder, *command.replace("python", sys.executable, 1).split())
        assert done.returncode == 0, done.stderr
    library = folder / "hipgemm/_emulator/libamdhip64.so"
    library.parent.mkdir(parents=True)
    library.symlink_to(EMULATOR)
    return folder


def test_the_c_program(folder: Path) -> None:
    (folder / "run.c").write_text(block("c"))
    (build,) = re.findall(r"^cc (.*)$", README, re.MULTILINE)
    compiler = ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
    done = run(folder, *compiler, *build.split())
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^LD_LIBRARY_PATH=(\S+) (\./run ?\d*)", README, re.MULTILINE)
    right, wrong = (run(folder, *command.split(), LD_LIBRARY_PATH=path) for path, command in lines)
    assert (right.returncode, right.stdout) == (0, "198\n"), right.stderr
    assert wrong.returncode == 1
    (message,) = re.findall(r"^(error 700: .*)$", README, re.MULTILINE)
    assert re.fullmatch(re.escape(message).replace("…", "[0-9a-f]+") + "\n", wrong.stderr), wrong.stderr


def test_the_python_program(folder: Path) -> None:
    done = run(folder, sys.executable, "-I", "-c", block("python"))
    assert done.stdout.splitlines()[0] == "198.0", done.stderr
    assert "'waves': 2" in done.stdout


@pytest.mark.skipif(ARCH != "gfx950", reason="its commands name gfx950")
def test_a_kernel_of_your_own(tmp_path: Path) -> None:
    """Source, commands, program and both reports of docs/trust/emulator.md."""
    source = block("c++", OWN)
    (tmp_path / "transpose.py").write_text(block("python", OWN))
    for console, defined in zip(blocks("console", OWN), ("", "#define FORGOTTEN\n"), strict=True):
        (tmp_path / "transpose.hip").write_text(f"{defined}#line 1\n{source}" if defined else source)
        command, wanted = console.removeprefix("$ ").split("\n", 1)
        for line in (*block("sh", OWN).splitlines(), command):
            words = [sys.executable if word == "python" else word for word in line.split()]
            done = run(tmp_path, *words, PYTHONPATH=str(ROOT))
            assert not done.returncode or words[2] == "hipgemm", done.stderr
        pattern = re.escape(wanted).replace("…", r"[^;\n]*?")
        assert re.fullmatch(pattern, done.stdout + done.stderr), done.stdout + done.stderr
        assert done.returncode == bool(defined)


def test_options_and_checks_are_those_of_the_sources() -> None:
    """Each variable that the sources read is in the table, and none else."""
    folder = ROOT / "emulator"
    sources = "".join(file.read_text() for file in folder.rglob("*.?pp"))
    read = set(re.findall(r'"HIPGEMM_EMULATOR_(\w+)"', sources))
    table = README.split("## Options")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert read == {name for row in rows for name in re.findall(r"`(\w+)`", row)}
