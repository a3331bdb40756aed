"""Each primitive has a verdict, a mutant that fails it, and kernels that are refused then."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hipgemm.inspect import primitives as verdicts
from hipgemm.kernels.manifest import Kernel, code_object
from hipgemm.kernels.primitives import PREFIX, PRIMITIVES
from hipgemm.runtime import hip as _hip

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import code_object as elf

Run = Callable[..., subprocess.CompletedProcess[str]]

TRY_ALL = """
import json
from hipgemm.inspect.primitives import WrongError, names_of, try_primitive
from hipgemm.errors import HipError
from hipgemm.kernels.manifest import code_object
from hipgemm.runtime import hip
names = names_of(code_object(hip.arch(0)).kernels)
def failures():
    found = []
    for name in names:
        try:
            try_primitive(name, 0)
        except (WrongError, HipError):
            found.append(name)
    return found
"""


def test_every_primitive_is_right() -> None:
    built = code_object(_hip.arch(0)).kernels
    names = verdicts.names_of(built)
    wrong = {}
    for name in names:
        try:
            verdicts.try_primitive(name, 0)
        except verdicts.WrongError as error:
            wrong[name] = str(error)
    assert wrong == {}
    tried = {f"{PREFIX}{case.kernel or name}" for name in names for case in verdicts._cases(name, built)}
    tried |= {f"{PREFIX}{name}" for name in ("arguments", verdicts.PORTABLE_KERNEL)}
    assert tried == {name for name in built if name.startswith(PREFIX)}


# ---- mutants -----------------------------------------------------------------------------------------

# Verdicts that a mutant fails besides its own: they use the same instruction.
OTHERS = {
    "lds_dma": {"lds_dma_m0", "lds_dma_offset", "lds_dma_range"},
    "lds_dma_m0": {"vmcnt"},
    "buffer_loads": {"memory_widths"},
    "barrier": {"lds_size", "s_setprio"},
    "mfma_bf16": {"mfma_denormals", "mfma_nan", "mfma_rounding", "mfma_sum_order"},
    "mfma_f16": {"mfma_denormals", "mfma_nan", "mfma_sum_order"},
    "mfma_fnuz": {"mfma_denormals", "mfma_nan", "mfma_sum_order"},
    "mfma_e4m3": {"mfma_denormals", "mfma_nan", "mfma_sum_order"},
    "mfma_e5m2": {"mfma_denormals", "mfma_nan"},
    "mfma_scale_e4m3": {"mfma_scale_bytes", "mfma_scale_values", "mfma_sum_order"},
    "mfma_scale_e2m1": {"mfma_scale_values"},
    "mfma_sum_order": {"mfma_rounding"},
    "stream_order": {"peer_access"},
}
TRY_MUTANTS = """
mutate = hip.runtime().emulator.hipgemm_emulator_set_mutant
found = {}
for name in MUTANTS or names:
    assert mutate(name.encode()) == 0, name
    found[name] = failures()
assert mutate(b"none such") == 1
mutate(None)
print(json.dumps([found, failures()]))
"""


# What gfx942 does by instructions of its own; it has no conversions to formats of 8 bits and fewer.
GFX942 = (
    *("mfma_bf16", "mfma_f16", "mfma_nan", "mfma_denormals", "mfma_rounding", "mfma_sum_order"),
    *("s_setprio", "lds_size", "buffer_stores", "unaligned_rows", "wave_scan", "barrier"),
    *("mfma_fnuz", "packed_f32", "integer_division", "f32_comparisons", "bits", "register_parts"),
    *("lds_widths", "memory_widths"),
)


@pytest.mark.emulator("mutants of the machine")
@pytest.mark.parametrize(("arch", "mutants"), [("gfx950", ()), ("gfx942", GFX942)])
def test_each_mutant_fails_its_verdict(run_python: Run, arch: str, mutants: tuple[str, ...]) -> None:
    code = f"{TRY_ALL}\nMUTANTS = {mutants}\n{TRY_MUTANTS}"
    environment = {"HIPGEMM_EMULATOR_DEVICES": "2", "HIPGEMM_EMULATOR_ARCH": arch}
    done = run_python(code, HIPGEMM_RUNTIME="emulator", **environment)
    assert done.returncode == 0, done.stderr
    found, without = json.loads(done.stdout)
    assert without == []
    assert {name: set(failed) for name, failed in found.items()} == {
        name: {name, *OTHERS.get(name, ())}
        for name in mutants or verdicts.names_of(code_object(arch).kernels)
    }


TRY_MODES = """
emulator = hip.runtime().emulator
for memory, waves in (
    ("late", "forward"), ("early", "reverse"), ("random:3", "random:5"), ("late-vm", "lockstep"),
    ("late-lgkm", "forward"),
):
    emulator.hipgemm_emulator_set_memory(memory.encode())
    emulator.hipgemm_emulator_set_waves(waves.encode())
    print(memory, waves, *failures(), sep=" ")
print(len(names))
"""


@pytest.mark.emulator("its modes and checks")
@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
def test_every_mode_of_the_emulator(run_python: Run, arch: str) -> None:
    environment = {"HIPGEMM_EMULATOR_ARCH": arch, "HIPGEMM_EMULATOR_CHECK": "all"}
    done = run_python(TRY_ALL + TRY_MODES, HIPGEMM_RUNTIME="emulator", **environment)
    *modes, count = done.stdout.splitlines()
    assert len(modes) == 5, done.stderr
    assert all(len(line.split()) == 2 for line in modes), modes
    assert int(count) == len(verdicts.names_of(code_object(arch).kernels))


# ---- the command -------------------------------------------------------------------------------------

REFUSED = """
import numpy as np, ml_dtypes, hipgemm as hg
from hipgemm.runtime import record
x = np.ones((256, 256), np.float32)
q = hg.quantize_fp8(x)
offsets = np.array([0, 128, 256], np.int32)
bf16 = x.astype(ml_dtypes.bfloat16)
for answer in (
    hg.can_use("matmul", q, q.T),
    hg.can_use("matmul", q.T, q),
    hg.can_use("grouped_wgrad", q, q, offsets),
    hg.can_use("matmul", bf16.T, bf16),
    hg.can_use("matmul", bf16, bf16, out_format="mxfp4_e2m1"),
    hg.can_use("linear", bf16, bf16, recipe="mxfp4"),
    hg.can_use("grouped_wgrad", q, q, offsets, arch="gfx950"),
):
    print(answer.kernel, *(reason.code for reason in answer.reasons), *answer.copies, sep="; ")
for call in (lambda: hg.grouped_wgrad(q, q, offsets), lambda: hg.quantize_mxfp4(hg.asarray(x))):
    try:
        call()
        print("served")
    except hg.UnsupportedError as error:
        print(error)
print(hg.info().advice)
"""


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "hipgemm", "selftest", "--primitives", *arguments]
    return subprocess.run(
        line, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120, check=False
    )


@pytest.mark.arch("gfx950")
@pytest.mark.emulator("mutants of the machine")
def test_what_rests_on_a_failed_primitive_is_refused(run_python: Run, tmp_path: Path) -> None:
    environment = {
        "HIPGEMM_RUNTIME": "emulator",
        "HIPGEMM_CACHE_DIR": str(tmp_path),
        "HIPGEMM_EMULATOR_MUTANT": "ds_read_b64_tr_b8",
    }
    done = command("ds_read_b64_tr_b8", "vmcnt", **environment)
    assert done.returncode == 1, done.stderr
    wrong = r"^FAIL  ds_read_b64_tr_b8 .*\n +480 of 512 .*lane 0, value 1: expected 0x10, got 0x1;"
    assert re.search(wrong, done.stdout, re.M)
    assert re.search(r"120 kernels rest on it: gemm nn of fp8_e5m2, fp8_e4m3", done.stdout)
    assert re.search(r"functions: matmul, .*grouped_wgrad", done.stdout)
    assert re.search(r"^ok    vmcnt ", done.stdout, re.M)

    (file,) = tmp_path.iterdir()
    record = json.loads(file.read_text())
    assert record["failed"] == ["ds_read_b64_tr_b8"]
    file.write_text(json.dumps({**record, "failed": ["ds_read_b64_tr_b8", "cvt_scalef32_pk_fp4_f32"]}))
    lines = run_python(REFUSED, **environment).stdout.splitlines()
    assert lines[0] == "gemm_fp8_e4m3_nt_32x64x128"
    assert lines[1] == "gemm_fp8_e4m3_nt_32x64x128; a: K not contiguous; b: K not contiguous"
    assert lines[2] == "None; primitive"
    assert lines[3].startswith("gemm_bf16_tn")
    assert lines[4:6] == ["None; primitive"] * 2
    assert lines[6].startswith("grouped_wgrad_fp8")
    assert re.match(r"grouped_wgrad: grouped_wgrad_fp8\w+ rests on ds_read_b64_tr_b8, which failed", lines[7])
    assert re.match(r"quantize_mxfp4: quantize_mxfp4\w* rests on cvt_scalef32_pk_fp4_f32, which", lines[8])

    assert re.match(
        r"device 0: kernels that rest on ds_read_b64_tr_b8, cvt_scalef32_pk_fp4_f32 are", lines[9]
    )

    ignored = run_python(REFUSED, HIPGEMM_FAILED_PRIMITIVES="ignore", **environment).stdout
    assert "primitive" not in ignored
    assert ignored.endswith("served\n" * 2 + "\n")
    file.write_text(json.dumps({**record, "kernels": "of another build"}))
    assert "primitive" not in run_python(REFUSED, **environment).stdout
    file.write_text(json.dumps({**record, "failed": ["vmcnt"]}))
    assert command("vmcnt", **environment).returncode == 0
    assert list(tmp_path.iterdir()) == []


WITHOUT_END = """
import os, signal, time
from hipgemm.inspect import primitives
limit = primitives.SECONDS
primitives.SPECIAL["arguments"] = lambda device: os.kill(os.getpid(), signal.SIGSEGV)
primitives.SPECIAL["peer_access"] = lambda device: time.sleep(60)
primitives.SPECIAL["stream_order"] = lambda device: 1 / 0
for seconds, names in ((0.5, ["peer_access"]), (limit, ["arguments", "stream_order", "barrier"])):
    primitives.SECONDS = seconds
    for verdict in primitives.run_all(names, 0, lambda verdict: None):
        print(verdict.name, verdict.wrong, sep=": ")
"""


def test_a_process_that_ends_or_hangs_is_a_verdict(run_python: Run) -> None:
    done = run_python(WITHOUT_END)
    assert done.stdout.splitlines() == [
        "peer_access: no answer within 0.5 s",
        "arguments: its process ended by signal SIGSEGV: no message",
        "stream_order: its process ended with 1: ZeroDivisionError: division by zero",
        "barrier: ",
    ], done.stderr


def test_unknown_names() -> None:
    done = command("nonsense")
    assert done.returncode == 2
    assert "error: no primitive nonsense; there are ds_read_b64_tr_b16, " in done.stderr


# ---- which kernels rest on which ---------------------------------------------------------------------

# How the instructions begin that a primitive is about; those of scaled formats by their codes, b first.
INSTRUCTIONS = {
    **{name: name for name in ("ds_read_b64_tr_b16", "ds_read_b64_tr_b8", "s_setprio")},
    "lds_dma": r"buffer_load_dwordx4 .* lds$",
    "permlane16_swap": "v_permlane16_swap_b32",
    "mfma_bf16": "v_mfma_f32_16x16x32_bf16",
    "mfma_f16": "v_mfma_f32_16x16x32_f16",
    "mfma_scale_bytes": "v_mfma_scale_f32",
    **{name: f"v_{name}" for name in PRIMITIVES if re.match("cvt_scalef32_pk(32)?_(bf16|f32)", name)},
}
# The same where other kernels may rest on them, too: which instructions a compiler takes is its choice.
PERHAPS = {
    "packed_f32": "v_pk_(add|mul|fma)_f32",
    "integer_division": "v_rcp_iflag_f32",
    "f32_comparisons": r"v_cmp_(n\w\w|u|o)_f32|v_maximum3_f32",
    "bits": r"v_(bitop3|perm|alignbit|bfi|bfrev|bfe_u|bfe_i)(_b)?32|v_pk_max_u16",
    "register_parts": r"v_\w+_sdwa",
    "lds_widths": r"ds_(read|write)_[bu]\d+ ",
    "memory_widths": r"global_(load|store)_(ubyte|ushort|byte|short)|buffer_load_(dwordx2|ubyte)",
    "mfma_fnuz": "v_mfma_f32_16x16x32_fp8_fp8",
}
FORMATS = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")


def instructions_of(symbol: elf.Symbol, content: bytes, library: Any) -> set[str]:
    """The distinct instructions of a kernel, without registers."""
    code = content[symbol.offset : symbol.offset + symbol.size]
    text, at, found = ctypes.create_string_buffer(256), 0, set()
    while at < len(code):
        size = library.hipgemm_emulator_disassemble(code[at : at + 16], len(code) - at, text, len(text))
        found.add(re.sub(rb"\b[vs]\d+|[vs]\[\d+:\d+\]|offset:\d+", b"", text.value).decode() if size else "")
        at += size or 4
    return found


def primitives_in(lines: set[str]) -> set[str]:
    """The primitives of INSTRUCTIONS, and those of formats, that these instructions are about."""
    found = {name for name, pattern in INSTRUCTIONS.items() if any(re.match(pattern, line) for line in lines)}
    kinds = (("v_mfma_f32_16x16x128", "mfma_"), ("v_mfma_scale_f32_16x16x128", "mfma_scale_"))
    for begin, prefix in (*kinds, ("v_mfma_scale_f32_32x32x64", "mfma32_scale_")):
        for line in lines:
            if line.startswith(begin):
                for field in ("cbsz", "blgp"):
                    code = re.search(rf"{field}:(\d)", line)
                    found.add(prefix + FORMATS[int(code[1]) if code else 0])
    return found & PRIMITIVES.keys()


# What needs no primitive: control flow and scalar registers, integers and words of 32 bits, without
# which none of these kernels would run, and other forms of what has one (a pair of LDS accesses in
# an instruction, a constant in it, the operands in another order, one of several moves by DPP).
PLAIN = re.compile(
    r"s_\w+"
    r"|v_(add|addc|sub|subb|subrev|subbrev|mul|mul_lo|mul_hi|mad|min|max|min3|max3|med3|xad|lshl_add|add_lshl|add3)"
    r"(_co)?_[iu](16|32|64)(_[iu]24|_[iu]32)?|v_(mul|mad)_[iu]32_[iu]24"
    r"|v_cmpx?_\w+_[iu](16|32|64)|v_pk_(lshlrev|lshrrev)_b16"
    r"|v_(pk_)?(mov|not|and|or|xor|or3|and_or|lshl_or|lshlrev|lshrrev|cndmask)_b(16|32|64)|v_ashrrev_i32"
    r"|ds_(read|write)2(st64)?_b(32|64)|v_fma[am]k_f32|v_sub(rev)?_f32|v_max3_f32"
)


def mnemonics(lines: set[str]) -> set[str]:
    """Without the encoding, but with `lds` of a DMA."""
    encoding = re.compile("_(e32|e64|sdwa|dpp)$")
    return {encoding.sub("", x.split()[0]) + " lds" * x.endswith(" lds") for x in lines if x}


class Built:
    """A code object, and its kernels' instructions."""

    def __init__(self, arch: str, library: Any) -> None:
        entry = code_object(arch)
        self._content, self._library = entry.path.read_bytes(), library
        self._symbols = elf.read(self._content).symbols
        self.kernels = entry.kernels

    def instructions(self, kernel: Kernel) -> set[str]:
        return instructions_of(self._symbols[kernel.name], self._content, self._library)

    def smallest(self) -> list[Kernel]:
        """The smallest tile of each kind that has instructions of its own."""
        chosen: dict[Any, Kernel] = {}
        for k in self.kernels.values():
            if k.op != "primitive" and "random" not in k.op:
                key = (k.op if not k.a else "", k.a, k.b, k.layout, k.mfma_rows)
                chosen[key] = min(chosen.get(key, k), k, key=lambda k: self._symbols[k.name].size)
        return list(chosen.values())


@pytest.mark.arch("gfx950")
@pytest.mark.emulator("its disassembler")
def test_kernels_rest_on_the_instructions_that_they_have(emulator: Any) -> None:
    built = Built("gfx950", emulator)
    checked = {*INSTRUCTIONS, *(p + f for p in ("mfma_", "mfma_scale_", "mfma32_scale_") for f in FORMATS)}
    checked &= PRIMITIVES.keys()
    for kernel in built.smallest():
        expected = primitives_in(built.instructions(kernel))
        assert {name for name in checked if PRIMITIVES[name].rests(kernel)} == expected, kernel.name


@pytest.mark.arch("gfx950")
@pytest.mark.emulator("its disassembler")
@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
def test_every_instruction_of_a_kernel_is_in_that_of_a_primitive(emulator: Any, arch: str) -> None:
    built = Built(arch, emulator)
    tried = [built.instructions(k) for k in built.kernels.values() if k.op == "primitive"]
    used = {}
    for k in built.smallest():
        lines = built.instructions(k)
        used |= dict.fromkeys(mnemonics(lines), k.name)
        for name, pattern in PERHAPS.items():
            assert PRIMITIVES[name].rests(k) or not any(re.match(pattern, line) for line in lines), k.name
    untried = used.keys() - mnemonics(set().union(*tried))
    assert {name: used[name] for name in untried if not PLAIN.fullmatch(name)} == {}
