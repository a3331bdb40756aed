"""The command line."""

import argparse
import json
import os
import re
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import info
from hipgemm.__main__ import main
from hipgemm.kernels.manifest import code_object
from hipgemm.runtime import hip as _hip
from hipgemm_benchmarks import layer, overhead, timing


def cli(*args, **environment):
    command = [sys.executable, "-m", "hipgemm", *args]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_info():
    done, here = cli("info"), info()
    arch = _hip.arch(0)
    assert done.returncode == 0
    assert re.search(
        rf"^runtime +{here.runtime} +\S+libamdhip64\.so[.\d]*\nversion +HIP \d+\.\d+\.\d+, driver .+$",
        done.stdout,
        re.MULTILINE,
    )
    assert re.search(rf"^device 0 +.+, {arch}$", done.stdout, re.MULTILINE)
    assert re.search(rf"^kernels +{arch}: \d+, ", done.stdout, re.MULTILINE)
    assert done.stderr == ""


@pytest.mark.emulator("a device of another architecture")
def test_info_says_that_no_kernel_serves_the_device():
    done = cli("info", HIPGEMM_EMULATOR_ARCH="gfx906")
    assert done.returncode == 1
    assert re.search(r"^device 0 +.+, gfx906$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^problem +device 0: no kernels for gfx906; .* for gfx950, .* only", done.stdout, re.MULTILINE
    )


def test_info_without_a_runtime():
    done = cli("info", HIPGEMM_RUNTIME="rocm", ROCM_PATH="/nowhere")
    assert done.returncode == 1
    assert "runtime     none" in done.stdout
    assert "problem     ROCm cannot be used: ROCM_PATH=/nowhere has no lib/libamdhip64.so" in done.stdout


def test_info_of_a_library_that_lacks_a_function(monkeypatch):
    """As hip-python reports it, at the first call."""

    def properties(device):
        raise RuntimeError("failed to dlsym 'b'hipGetDevicePropertiesR0600'': undefined symbol")

    monkeypatch.setattr(_hip, "properties", properties)
    found = info()
    assert "problem     failed to dlsym" in str(found)
    assert found.runtime


SOME = ("gemm_bf16_nt", "gemm_mxfp8_e4m3", "plain_gemm")


def test_selftest_reports_kinds_or_every_product(monkeypatch, capsys):
    monkeypatch.setattr("hipgemm.__main__.SELFTEST_SHAPES", ((1, 1, 1), (5, 3, 2)))
    assert main(["selftest", *SOME]) == 0
    lines = capsys.readouterr().out.splitlines()
    kinds = [line for line in lines if line.endswith(" products: all right")]
    assert len(lines) == len(str(info()).splitlines()) + len(kinds) + 2
    assert lines[-2:] == [f"on {info().summary}", "selftest: all right"]
    assert main(["selftest", *SOME, "-v"]) == 0
    every = capsys.readouterr().out.splitlines()
    assert [line for line in every if line in kinds] == kinds
    products = sum(line.startswith("ok    ") for line in every)
    assert products == sum(int(re.search(r"(\d+) products", line)[1]) for line in kinds)
    tried = [line.split()[1] for line in every if line.startswith("ok    ")]
    assert set(tried) == {k for k in code_object(_hip.arch(0)).kernels if k.startswith(SOME)}
    assert main(["selftest", "gemm_f8"]) == 2
    assert capsys.readouterr().err.endswith("no kernel for products here has a name with gemm_f8\n")


def test_selftest_fails_when_a_product_is_wrong(monkeypatch, capsys):
    import hipgemm.__main__ as module

    real = module.matmul

    def wrong(*args, **kwargs):
        out = real(*args, **kwargs)
        if not isinstance(out, module.np.ndarray) or out.size < 1000:
            return out
        out[3, 3] += 1 + abs(out[3, 3])
        return out

    monkeypatch.setattr(module, "matmul", wrong)
    monkeypatch.setattr(module, "SELFTEST_SHAPES", ((64, 64, 64),))
    assert main(["selftest", *SOME]) == 1
    text = capsys.readouterr().out
    assert "FAIL" in text
    assert "worst out[3, 3]" in text
    assert re.search(r"selftest: \d+ failures$", text.strip())


@pytest.mark.matrix
def test_can_use(capsys):
    assert main(["can-use", "matmul", "300x512", "512x384T", "--dtype", "f32"]) == 0
    assert capsys.readouterr().out.startswith("yes: gemm_bf16_nt_")
    assert main(["can-use", "matmul", "300x512", "512x384"]) == 0
    assert capsys.readouterr().out.startswith("yes: gemm_bf16_nn_")
    assert main(["can-use", "matmul", "4x300x512T", "512x384"]) == 0
    assert capsys.readouterr().out.startswith("yes: gemm_bf16_tn_")
    assert main(["can-use", "matmul", "300x512", "500x384", "--input", "f32"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("no:")
    assert "(K)" in out
    assert "a.dtype must be" in out
    assert main(["can-use", "matmul", "300x512", "512x384T"]) == 0
    assert "estimates of the cost model (not measured):" in capsys.readouterr().out
    assert main(["can-use", "matmul", "300", "500x384"]) == 2
    capsys.readouterr()
    for form in ("fp8_e4m3", "mxfp8_e5m2", "mxfp4_e2m1"):
        for a, b in (("300x512", "512x384T"), ("300x512T", "512x384")):
            assert main(["can-use", "matmul", a, b, "--input", form]) == 0
            out = capsys.readouterr().out
            # MX formats are read along K only.
            layout = "tn" if "T" in a and form == "fp8_e4m3" else "nt"
            assert out.startswith(f"yes: gemm_{form}_{layout}_")
            # 4-bit elements change layout when they are packed, during the upload.
            assert ("copies a" in out) == ("T" in a and form == "mxfp8_e5m2")


@pytest.mark.parametrize("op", ["grouped_matmul", "grouped_wgrad"])
@pytest.mark.parametrize("form", ["bf16", "fp8_e4m3", "mxfp8_e4m3"])
@pytest.mark.matrix
def test_grouped_products_on_the_command_line(op, form, capsys):
    """Both commands name what the product itself would take."""
    rng = np.random.default_rng(0)
    offsets = np.linspace(0, 300, 6).astype(np.int32)
    shapes = ((300, 512), (5, 512, 384)) if op == "grouped_matmul" else ((300, 512), (300, 384))
    axes = (-1, -2) if op == "grouped_matmul" else (0, 0)
    operands = []
    for shape, axis in zip(shapes, axes, strict=True):
        x = rng.standard_normal(shape).astype(np.float32)
        if form == "bf16":
            operands.append(x.astype(ml_dtypes.bfloat16))
        elif form == "fp8_e4m3":
            operands.append(hg.quantize_fp8(x))
        elif axis == 0:
            operands.append(hg.quantize_mxfp8(x, axis=axis, group_offsets=offsets))
        else:
            operands.append(hg.quantize_mxfp8(x, axis=axis))
    hg.reset_usage()
    getattr(hg, op)(*operands, offsets)
    (kernel,) = hg.usage().served
    texts = ["x".join(map(str, shape)) for shape in shapes]
    for name in ("--format", "--input"):
        assert main(["can-use", op, *texts, name, form, "--groups", "5"]) == 0
        assert capsys.readouterr().out.startswith(f"yes: {kernel}\n")
    extents = ["300", "384", "512"] if op == "grouped_matmul" else ["512", "384", "300"]
    assert main(["explain", *extents, "--op", op, "--format", form, "--layout", "nn", "--groups", "5"]) == 0
    assert capsys.readouterr().out.startswith(f"yes: {kernel}\n")


def test_grouped_products_told_wrongly(capsys):
    assert main(["can-use", "grouped_matmul", "300x512", "5x512x384", "--groups", "4"]) == 1
    assert "group_offsets.shape must be (G+1,)=(6,); got (5,)" in capsys.readouterr().out
    assert main(["explain", "1", "1", "1", "--op", "grouped_matmul", "--batch", "2"]) == 2
    assert "--batch must be left out for grouped products; got 2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["explain", "1", "1", "1", "--op", "grouped_matmul", "--groups", "0"])


@pytest.mark.parametrize("command", [["can-use", "matmul", "64x64", "64x64"], ["explain", "64", "64", "64"]])
@pytest.mark.packaging
@pytest.mark.emulator("a device of another architecture")
def test_the_architecture_is_that_of_the_device(command):
    done = cli(*command, HIPGEMM_EMULATOR_ARCH="gfx90a")
    assert done.stdout.startswith(
        "yes: plain_gemm\n  no faster kernel: the GPU must have matrix kernels: gfx950 or gfx942;"
    )
    assert cli(*command, "--arch", "gfx950", HIPGEMM_EMULATOR_ARCH="gfx90a").stdout.startswith(
        "yes: gemm_bf16"
    )
    missing = cli(*command, HIPGEMM_RUNTIME="rocm", ROCM_PATH="/nowhere")
    assert missing.returncode == 1
    assert missing.stderr.endswith("; or name an architecture: --arch gfx950\n")
    named = cli(*command, "--arch", "gfx90a", HIPGEMM_RUNTIME="rocm", ROCM_PATH="/nowhere")
    assert named.stdout.startswith("yes: plain_gemm\n")


@pytest.mark.packaging
@pytest.mark.emulator("a device of another architecture")
def test_selftest_without_matrix_kernels():
    done = cli("selftest", HIPGEMM_EMULATOR_ARCH="gfx90a")
    assert done.stdout.splitlines()[-1] == (
        "selftest: no matrix kernels for gfx90a, only for gfx950 or gfx942; "
        "the plain kernel is correct, but slow"
    )
    assert done.returncode == 0


@pytest.mark.matrix("bf16")
def test_representations_are_short():
    """As a notebook shows them; str() has everything."""
    a = np.ones((64, 64), ml_dtypes.bfloat16)
    hg.matmul(a, a)
    hg.can_use("matmul", a.astype("i4"), a)
    for made in (info(), hg.can_use("matmul", a, a), hg.can_use("matmul", a[0], a[:3]), hg.usage()):
        assert re.fullmatch(rf"{type(made).__name__}\(.+\)", repr(made))
        assert len(repr(made)) < 250
        assert len(str(made)) > 0
    assert len(str(info())) > 1000
    for cost in hg.can_use("matmul", a, a).costs:
        assert len(repr(cost)) < 250
        assert len(repr(cost.kernel)) < 350


@pytest.mark.parametrize("command", ["selftest", "bench"])
def test_errors_are_one_line(command):
    done = cli(command, HIPGEMM_RUNTIME="rocm", ROCM_PATH="/nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ROCm cannot be used: ROCM_PATH=/nowhere has no")
    assert len(done.stderr.splitlines()) == 1
    if command == "bench":
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--sizes", "x", "must be positive numbers such as 256,512; got 'x'"),
        ("--sizes", "64,0", "must be positive numbers such as 256,512; got '64,0'"),
        ("--emulator-sizes", "", "must be positive numbers such as 256,512; got ''"),
        ("--repeat", "0", "must be a positive number; got '0'"),
        ("--seconds", "nan", "must be a number of seconds; got 'nan'"),
    ],
)
def test_bench_refuses(capsys, option, value, text):
    with pytest.raises(SystemExit) as caught:
        main(["bench", option, value])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: argument {option}: {text}\n")


def test_bench_reports_its_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for default in ("256,512,1024", "512,1024,2048,4096", "5", "2"):
        assert f"(default: {default})" in text


# So often, instead of often enough to measure.
FEW = {
    "microseconds": {"batches": 1},
    "split": {"batches": 1},
    "allocations": {"calls": 100},
    "import_seconds": {"runs": 1},
}


@pytest.mark.packaging  # the emulator at each level of CPUs
def test_bench_prints_its_figures(monkeypatch, capsys, matrix_kernels):
    for function, few in FEW.items():
        monkeypatch.setattr(overhead, function, partial(getattr(overhead, function), **few))
    monkeypatch.setattr(layer, "WIDTH", 1024)
    monkeypatch.setattr(layer, "HIDDEN", 3584)
    quick = ["--sizes", "64", "--repeat", "1", "--emulator-sizes", "64,128", "--seconds", "0"]
    quick += ["--layer-rows", "1"]
    assert main(["bench", *quick]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"on {info().summary}\n")
    assert re.search(r"matmul 64\^3 bf16: +[\d.]+ ms resident", text)
    assert re.search(r"  matmul, out= given +[\d.]+\n  hip-python alone +[\d.]+\n", text)
    assert re.search(r"above hip-python's own launch of its kernel: [-\d.]+ \(aim: 2\.5\)", text)
    assert re.search(r"  matmul, out= given +0 by HIP, 0 bytes on the device, 0 pinned, \d+ objects", text)
    if info().runtime == "emulator" and matrix_kernels:
        assert re.search(r"CPU features in use: \w+", text)
        rates = r"  v2 +[\d.]+ M wave-instructions/s landing late, +[\d.]+ early; late takes [\d.]+ times"
        assert re.search(rates, text)
        assert "(aims are for two idle cores with AVX-512)" in text
        assert re.search(r"HIPGEMM_EMULATOR_CHECK=hazard +[\d.]+ times the time", text)
        assert re.search(r"  mfma +[\d.]+ % of the time, +[\d.]+ % of the instructions", text)
        assert re.search(
            r"  M= +1 fused / unfused: 0\.\d+ of the bytes moved; 0\.\d+ of those requested", text
        )
        assert re.search(r"  128\^3 bf16 +[\d.]+ ms, .*; grows as size\^", text)


OPS = [pytest.param(op, marks=pytest.mark.matrix) if op.startswith("grouped") else op for op in timing.OPS]


@pytest.mark.parametrize("op", OPS)
def test_bench_of_one_operation(op, tmp_path, capsys):
    table, record, plot = tmp_path / "t.csv", tmp_path / "t.json", tmp_path / "t.png"
    command = ["bench", "--op", op, "--shapes", "70x64x96", "--groups", "3", "--calls", "3", "--refcheck"]
    drawn = ["--plot", str(plot)] if find_spec("matplotlib") else []
    assert main([*command, "--csv", str(table), "--json", str(record), *drawn]) == 0
    out = capsys.readouterr().out
    assert " ok " in out
    rows = json.loads(record.read_text())
    assert rows["about"]["hipgemm"] == hg.__version__
    assert (rows["about"]["runtime"], rows["about"]["library"]) == (info().runtime, info().library)
    assert out.startswith(f"on {info().summary}\n")
    (row,) = rows["rows"]
    assert row["check"] == "ok"
    assert 0 < row["p10_us"] <= row["median_us"] <= row["p90_us"]
    assert row["kernel"] in out
    assert table.read_text().splitlines()[0].startswith("op,format,name,m,n,k")
    assert not drawn or plot.read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--shapes", "12"], "--shapes must be MxK, MxNxK or a set"),
        (["--op", "matmul", "--shapes", "128x64"], "--shapes must be MxNxK or a set (llama3-8b, "),
        (
            ["--op", "grouped_wgrad", "--shapes", "8x8x8,128x64"],
            "--shapes must be MxNxK or a set (llama3-8b, ",
        ),
        (["--csv", "/"], "files must go into a folder that exists; got /"),
        (["--shapes", "1x2x0"], "sizes must be positive numbers; got '0'"),
        (["--format", "bf16"], "--format of quantize_mxfp8 must be mxfp8_e4m3, mxfp8_e5m2; got bf16"),
        (["--calls", "0"], "--calls and --groups must be positive; got 0 and 8"),
    ],
)
def test_bench_says_what_is_wrong(arguments, reported):
    with pytest.raises(SystemExit, match=re.escape(reported)):
        main(["bench", "--op", "quantize_mxfp8", *arguments])


@pytest.mark.parametrize("op", ["quantize_mxfp8", "dequantize"])
def test_bench_of_an_array(op, capsys):
    assert main(["bench", "--op", op, "--shapes", "70x96", "--calls", "1"]) == 0
    assert re.search(r"^70x96 +70 ", capsys.readouterr().out, re.MULTILINE)


def test_bench_measures_nothing_that_it_cannot_write(monkeypatch, tmp_path):
    """What is missing is an error before minutes of measuring, not after."""
    monkeypatch.setattr(timing, "_measure", lambda *_: pytest.fail("measured"))
    command = ["bench", "--op", "matmul", "--shapes", "8x8x8"]
    monkeypatch.setattr(timing, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="bench: --plot needs matplotlib"):
        main([*command, "--plot", str(tmp_path / "x.png")])
    for option in ("--csv", "--json", "--plot"):
        for file in (tmp_path, tmp_path / "none" / "x.png"):
            with pytest.raises(SystemExit, match="files must go into a folder that exists"):
                main([*command, option, str(file)])
    monkeypatch.setattr(timing.os, "access", lambda file, how: False)
    with pytest.raises(SystemExit, match="files must be writeable"):
        main([*command, "--csv", str(tmp_path / "x.csv")])


def test_bench_finds_what_is_wrong(monkeypatch, capsys):
    right = timing.matmul
    monkeypatch.setattr(
        timing, "matmul", lambda a, b, out, stream: right(a, b, out, alpha=1.1, stream=stream)
    )
    assert main(["bench", "--op", "matmul", "--shapes", "8x8x8", "--calls", "1", "--refcheck"]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_shape_sets():
    asked = argparse.Namespace(op="matmul", format="bf16", shapes="llama3-8b,cubes", tokens="1,16", groups=8)
    cases = list(timing._cases(asked))
    assert (cases[0].m, cases[0].n, cases[0].k) == (1, 6144, 4096)
    assert len(cases) == 4 * 2 + 6


@pytest.mark.parametrize("op", ["matmul", "grouped_matmul"])
@pytest.mark.parametrize("glu", ["interleaved", "halves"])
@pytest.mark.parametrize("out", [["--accumulate"], ["--out-format", "mxfp6"], ["--out-format", "fp8"]])
def test_stages_on_the_command_line(op, glu, out, capsys):
    """Both commands say what can_use says of a call with arrays."""
    a, b = np.zeros((64, 128), ml_dtypes.bfloat16), np.zeros((128, 96), ml_dtypes.bfloat16)
    operands = [a, b]
    if op == "grouped_matmul":
        operands = [a, np.stack([b] * 2), np.array([0, 32, 64], np.int32)]
    stages = {"glu": glu, "activation": "silu", "aux": np.zeros_like(a[:, :96]), "residual": b[:64, :48] * 1}
    words = ["--glu", glu, "--activation", "silu", "--aux", "--residual"]
    if out[0] == "--accumulate":
        stages |= {"accumulate": True, "out": np.zeros_like(stages["residual"])}
    else:
        stages["out_format"] = "mxfp6_e2m3" if out[1] == "mxfp6" else "fp8_e4m3"
    if stages.get("out_format") == "fp8_e4m3":
        stages["out_amax"] = hg.AmaxState(1.0)
    want = str(hg.can_use(op, *operands, arch="gfx950", **stages))
    assert "applies activation, glu, aux, residual, " in want
    assert ("split_reduce" in want) == (glu == "halves")
    shapes = ["x".join(map(str, x.shape)) for x in operands[:2]]
    more = [*words, *out, "--arch", "gfx950"]
    for command in (
        ["can-use", op, *shapes, *more],
        ["explain", "64", "96", "128", "--op", op, "--groups", "2", "--layout", "nn", *more],
    ):
        assert main(command) == 0
        assert capsys.readouterr().out.startswith(f"{want}\n")


def test_stages_that_an_operation_has_not(capsys):
    for command in (
        ["can-use", "grouped_wgrad", "8x64", "8x32"],
        ["explain", *"888", "--op", "grouped_wgrad"],
    ):
        assert main([*command, "--activation", "relu"]) == 2
        assert "grouped_wgrad has no activation" in capsys.readouterr().err
