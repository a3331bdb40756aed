"""Which compiler builds the kernels, and the errors for one that cannot be used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import kernels  # noqa: E402
import probe  # noqa: E402
import toolchain  # noqa: E402
from probe import find_toolchain  # noqa: E402
from toolchain import SOURCE, BuildError, NoCompilerError, pinned  # noqa: E402

WAY_OUT = f"; unset HIPGEMM_HIPCC to use the pinned compiler (pip install {pinned()})"
BUILTIN = r"\b__(?:builtin|scoped|amdgpu)_\w+"


try:
    PINNED = toolchain._ziglang()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)
VERSION = PINNED.version()


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    monkeypatch.delenv("HIPGEMM_HIPCC", raising=False)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A program under HIPGEMM_HIPCC: the pinned compiler, reached by a script that may do more."""

    def make(before="", flags="", linker='exec LLD "$@"', name="amdclang++"):
        for path, script in ((name, f'{before}\nexec CLANG {flags} "$@"'), ("ld.lld", linker)):
            text = script.replace("CLANG", " ".join(PINNED.clang)).replace("LLD", " ".join(PINNED.lld))
            (tmp_path / path).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / path).chmod(0o755)
        monkeypatch.setenv("HIPGEMM_HIPCC", str(tmp_path / name))
        return tmp_path / name

    return make


def refusal():
    """The error: one line that begins with the setting and ends with what to do."""
    with pytest.raises(BuildError) as caught:
        find_toolchain()
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"HIPGEMM_HIPCC={os.environ['HIPGEMM_HIPCC']} ")
    assert message.endswith(WAY_OUT)
    return message.removesuffix(WAY_OUT).removeprefix(f"HIPGEMM_HIPCC={os.environ['HIPGEMM_HIPCC']} ")


# ---- the choice ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "", "ziglang"])
def test_rocm_beside_it_is_not_taken(driver, tmp_path, monkeypatch, value):
    """A ROCm tree under every name that hosts use; the pinned compiler is still used."""
    driver(before="echo taken >&2; exit 1")
    for where in ("bin", "llvm/bin", "lib/llvm/bin"):
        (tmp_path / where).mkdir(parents=True)
        for name in ("amdclang++", "hipcc"):
            (tmp_path / where / name).symlink_to(tmp_path / "amdclang++")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("HIP_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{tmp_path}/llvm/bin:{os.environ['PATH']}")
    monkeypatch.delenv("HIPGEMM_HIPCC")
    if value is not None:
        monkeypatch.setenv("HIPGEMM_HIPCC", value)
    tools = find_toolchain()
    zig = str(Path(find_spec("ziglang").origin).parent / "zig")
    assert (tools.clang[:2], tools.lld) == ([zig, "clang"], [zig, "ld.lld"])
    assert not tools.origin


@pytest.mark.parametrize("name", ["amdclang++", "hipcc"])
def test_one_that_passes_is_taken(driver, tmp_path, monkeypatch, name, capfd):
    path = driver(name=name)
    tools = find_toolchain()
    assert (tools.clang, tools.lld) == ([str(path)], [str(tmp_path / "ld.lld")])
    assert tools.version() == VERSION
    assert tools.seconds is None
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HIPGEMM_HIPCC", name)  # by its name in PATH
    assert find_toolchain().clang == [str(path)]
    assert capfd.readouterr() == ("", "")


def test_rocm_calls_its_clang_by_its_own_name(driver):
    driver(
        before='[ "$1" = --version ] && { echo HIP version: 7.1; echo AMD clang version 22.0.0git x; exit; }'
    )
    assert find_toolchain().version() == "AMD clang version 22.0.0git"


def test_another_ziglang_must_pass_too(monkeypatch):
    monkeypatch.setattr(toolchain.importlib.metadata, "version", lambda name: "0.16.0")
    assert find_toolchain().origin == "ziglang==0.16.0"  # it is in fact the pinned one
    monkeypatch.setattr(probe, "faults", lambda kernel, arch: [f"{kernel['name']}: VGPR spills 3, must be 0"])
    with pytest.raises(BuildError) as caught:
        find_toolchain()
    assert str(caught.value) == (
        f"ziglang==0.16.0 ({VERSION}) does not keep the limits of {probe.INSTANCE}: "
        f"VGPR spills 3, must be 0; install the pinned compiler: pip install {pinned()}"
    )


def test_none_at_all(monkeypatch):
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    says = (
        f"has no package ziglang; install the pinned compiler: pip install {pinned()} (or set HIPGEMM_HIPCC"
    )
    with pytest.raises(NoCompilerError, match=re.escape(says)):
        find_toolchain()


# ---- what is refused -------------------------------------------------------------------------------


def test_missing(monkeypatch):
    monkeypatch.setenv("HIPGEMM_HIPCC", "/no/such/amdclang++")
    assert refusal() == "names no program"


def test_not_executable(driver):
    driver().chmod(0o644)
    assert refusal() == "names a file that cannot be executed"


def test_not_a_program(driver):
    """As one for another machine is."""
    driver().write_bytes(b"\x7fELF\x02\x01\x01" + bytes(64))
    assert re.fullmatch(r"does not print its version: .*Exec format error.*", refusal())


@pytest.mark.parametrize(
    ("says", "code"), [("", 0), ("g++ (Debian 12.2.0-14) 12.2.0", 0), ("clang: not this one", 0)]
)
def test_no_clang(driver, says, code):
    path = driver(before=f"echo '{says}'; exit {code}")
    assert refusal() == f"is no clang: `{path} --version` names none"


def test_a_driver_that_fails(driver):
    driver(before="echo hipcc: cannot find clang >&2; exit 3")
    assert refusal() == "does not print its version: hipcc: cannot find clang"


def test_a_driver_that_hangs(driver, monkeypatch):
    monkeypatch.setattr(toolchain, "VERSION_SECONDS", 0.5)
    driver(before="sleep 600")  # in its own process, which must not remain
    started = time.monotonic()
    assert refusal() == "does not print its version: no answer within 0.5 s"
    assert time.monotonic() - started < 20


def test_a_compiler_that_hangs(driver, monkeypatch):
    monkeypatch.setattr(probe, "SECONDS", 2)
    driver(before='[ "$1" = --version ] || sleep 600')
    started = time.monotonic()
    assert refusal() == f"({VERSION}) cannot compile the kernels: no answer within 2 s"
    assert time.monotonic() - started < 20


def test_a_compiler_that_writes_nothing(driver):
    driver(before='[ "$1" = --version ] || exit 0')
    assert re.fullmatch(
        r"\(.*\) cannot compile the kernels: .*amdclang\+\+ succeeded, but wrote no probe.s", refusal()
    )


def test_no_linker(driver, tmp_path, monkeypatch):
    driver()
    (tmp_path / "ld.lld").unlink()
    monkeypatch.setenv("PATH", "/usr/bin:/bin" if not Path("/usr/bin/ld.lld").exists() else "")
    assert refusal() == f"({VERSION}) has no ld.lld next to it or in PATH"


def test_a_linker_that_fails(driver):
    driver(linker="echo ld.lld: error: unknown emulation >&2; exit 1")
    assert refusal() == f"({VERSION}) cannot compile the kernels: unknown emulation"


def test_an_unknown_builtin(driver):
    driver(flags="-D__builtin_amdgcn_permlane16_swap=__builtin_amdgcn_no_such_thing")
    assert refusal() == (
        f"({VERSION}) cannot compile the kernels: use of undeclared identifier "
        "'__builtin_amdgcn_no_such_thing'"
    )


def test_an_older_version(driver):
    """The message has the compiler's own name."""
    driver(
        before='[ "$1" = --version ] && { echo AMD clang version 19.0.0git; exit; }',
        flags="-D__builtin_amdgcn_cvt_scalef32_pk_f32_fp4=__builtin_amdgcn_not_yet",
    )
    assert refusal().startswith(
        "(AMD clang version 19.0.0git) cannot compile the kernels: use of undeclared ident"
    )


def test_spills(driver):
    """Real ones: the compiler is given fewer registers than the kernel needs."""
    driver(flags="'-Damdgpu_waves_per_eu(n)=amdgpu_num_vgpr(64)'")
    assert re.match(
        rf"\(.*\) does not keep the limits of {probe.INSTANCE}: VGPR spills [1-9]\d*, must be 0, ", refusal()
    )


def test_a_slow_main_loop(driver):
    driver(flags="-Wno-unused-command-line-argument -fno-unroll-loops")
    assert re.search(
        r", and \d{3}.* VALU \+ .* SALU per K tile in the main loop, must be at most 12", refusal()
    )


# ---- the probe -------------------------------------------------------------------------------------


def test_the_probe_has_every_builtin_of_the_kernels():
    sources = [path for path in SOURCE.rglob("*.*") if path.name != "probe.hip"]
    assert len(sources) > 30
    used = {name for path in sources for name in re.findall(BUILTIN, path.read_text())}
    assert "__builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4" in used
    assert used <= set(re.findall(BUILTIN, (SOURCE / "probe.hip").read_text()))


def test_make_says_it_before_it_compiles_anything(driver):
    """One line and the exit status; existing kernels remain."""
    path = driver(flags="-D__builtin_amdgcn_ballot_w64=__builtin_amdgcn_no_such_thing")
    manifest = ROOT / "hipgemm" / "kernels" / "manifest.json"
    before = manifest.read_bytes()
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "kernels.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"tools/kernels.py: HIPGEMM_HIPCC={path} ({VERSION}) cannot compile the kernels: ")
    assert line.endswith(f" undeclared identifier '__builtin_amdgcn_no_such_thing'{WAY_OUT}")
    assert manifest.read_bytes() == before


def test_make_says_it_of_a_compiler_that_fails_later(driver, monkeypatch, capsys):
    """The probe's kernel compiled, another does not: a list, followed by the same sentence."""
    path = driver()
    manifest = json.loads((ROOT / "hipgemm" / "kernels" / "manifest.json").read_text())
    first = manifest["archs"]["gfx942"]["kernels"][0]
    first["sgpr_spills"] = 44
    monkeypatch.setattr(sys, "argv", ["kernels.py"])
    monkeypatch.setattr(kernels, "build", lambda *_: (manifest, {}))
    assert kernels.main() == 1
    *_, fault, sentence = capsys.readouterr().err.splitlines()
    assert fault == f"{first['name']}: SGPR spills 44, must be 0"
    begin = f"HIPGEMM_HIPCC={path} ({VERSION}) "
    assert sentence == f"{begin}does not keep the limits of the kernels, as listed above{WAY_OUT}"

    def fails(*_):
        raise BuildError("clang -c x\nx.hip:1:2: error: no such register\n1 error generated.")

    monkeypatch.setattr(kernels, "build", fails)
    assert kernels.main() == 1
    *_, sentence = capsys.readouterr().err.splitlines()
    assert sentence == f"{begin}cannot compile the kernels: no such register{WAY_OUT}"
