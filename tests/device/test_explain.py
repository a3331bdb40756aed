"""The output of `explain`, and the estimates against the emulator's counters."""

import re
from dataclasses import replace

import gemm_launch
import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.__main__ import main
from hipgemm.inspect.explain import ask, in_place
from hipgemm.kernels.manifest import ARCHS, GEMMS
from hipgemm.products.chips import CHIPS
from hipgemm.products.cost import Load, Product, estimate
from hipgemm.runtime import hip as _hip
from hipgemm_benchmarks import matrix_rows
from hipgemm_benchmarks import model_check as choice_check
from hipgemm_benchmarks.model_check import (
    DMA_BYTES,
    LDS_CLOCKS,
    MATRIX_CLOCKS,
    READ_BYTES,
    UNIQUE_BYTES,
    WRITTEN_BYTES,
)

FORMATS = ("bf16", "fp8_e4m3", "mxfp8_e4m3", "mxfp4_e2m1")  # f16 and the other fp8 pairs are the same code
KERNELS = [  # but for those that are used by name only
    k
    for k in gemm_launch.KERNELS.values()
    if k.op in GEMMS and k.a == k.b and k.a in FORMATS and not k.by_name
]
emulated = pytest.mark.emulator("counters")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (["4096", "4096", "4096"], (4096, 4096, 4096, "bf16")),
        (["16", "4096", "14336", "--format", "mxfp4_e2m1"], (16, 4096, 14336, "mxfp4_e2m1")),
        (["300", "200", "100", "--layout", "tn", "--batch", "3"], (300, 200, 100, "bf16", "tn", 3)),
        (["1", "512", "512", "--dtype", "f32"], (1, 512, 512, "bf16", "nt", 0, "f32")),
    ],
)
def test_explain_reports_what_can_use_answers(capsys, arguments, question):
    assert main(["explain", *arguments]) == 0
    text = capsys.readouterr().out
    answer = ask(*question)
    assert text.startswith(f"yes: {answer.kernel}")
    rows = [line.split() for line in text.splitlines() if line.startswith("  ")]
    costs = in_place(answer)
    table = [row for row in rows if row[0] in {c.kernel.name for c in answer.costs}]
    assert len(table) == len(costs) > 1
    for row, cost in zip(table, costs, strict=True):
        assert row[:4] == [cost.kernel.name, str(cost.tiles), str(cost.splits), str(cost.rounds)]
        assert row[-1] == cost.bound
        assert row[-4] == f"{cost.clocks:,.0f}"
    for term in costs[0].terms:
        assert re.search(
            rf"^ +{term.name} +{term.clocks:,.0f}  {re.escape(term.formula)}$", text, re.MULTILINE
        )
    for name, rate in CHIPS[_hip.arch(0)].rates.named().items():
        assert re.search(rf"^  {re.escape(name)} .*; {re.escape(rate.source)}$", text, re.MULTILINE)
    other = costs[1]
    times = other.clocks / costs[0].clocks
    words = " ".join(text.split())
    assert f"{other.kernel.name} would take {times:.3g} times as long" in words


@pytest.mark.parametrize("arch", ARCHS)
def test_explain_has_the_rates_of_the_architecture(capsys, arch):
    assert main(["explain", "4096", "4096", "4096", "--arch", arch]) == 0
    text = capsys.readouterr().out
    chip = CHIPS[arch]
    rates = chip.rates.named().values()
    assumed = sum(rate.source.startswith("assumed") for rate in rates)
    assert 0 < assumed < len(rates)
    assert f"parameters of the model, {chip}; {assumed} of {len(rates)} are assumed\n" in text
    printed = re.findall(r"^  (\S.*?)  +([\d,.e+]+) .*?; .*$", text.split(str(chip))[1], re.MULTILINE)
    assert printed == [(name, f"{rate.value:,g}") for name, rate in chip.rates.named().items()]
    answer = ask(4096, 4096, 4096, "bf16", arch=arch)
    assert answer.costs[0].load.chip is chip
    peak = 2 * max(rate.value for rate in (chip.rates.matrix[16], chip.rates.vector))
    peak *= chip.compute_units * chip.ghz / 1e3
    assert 2 * 4096**3 / answer.costs[0].microseconds / 1e6 < peak


@pytest.mark.packaging  # of another architecture
def test_explain_says_that_rates_are_not_known(monkeypatch, capsys):
    monkeypatch.delitem(CHIPS, "gfx942")
    assert main(["explain", "64", "64", "64", "--arch", "gfx942"]) == 0
    assert (
        "parameters of the model (gfx950's; those of gfx942 are not known), MI355X: "
        in capsys.readouterr().out
    )


def test_explain_reports_why_nothing_serves(capsys):
    assert main(["explain", "16", "16", "16", "--format", "f32"]) == 1
    assert capsys.readouterr().out.startswith("no:\n  - a.dtype must be bfloat16")


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ([], "are needed"),
        (["16", "16"], "are needed"),
        (["1", "1", "1", "--batch", "-2"], "must be at least 0"),
    ],
)
def test_explain_without_a_product(capsys, arguments, wrong):
    assert main(["explain", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: M, N and K {wrong}")


@pytest.mark.matrix("bf16")
def test_the_chosen_kernel_is_the_one_that_runs():
    rng = np.random.default_rng(0)
    for m, n, k in ((1, 300, 2000), (70, 70, 72), (300, 300, 64)):
        a, w = (hg.asarray(hg.testing.random_matrix((rows, k), rng)) for rows in (m, n))
        hg.reset_usage()
        hg.matmul(a, w.T)
        answer = ask(m, n, k, "bf16")
        served = hg.usage().served
        assert list(served) == [answer.kernel]
        assert served[answer.kernel] == (1, 2 * m * n * k, 2 * (m * k + n * k + m * n))
        assert ("split_reduce" in hg.usage().kernels) == (answer.splits > 1)


@emulated
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_the_model_expects_what_is_counted(kernel):
    """A launch with partial tiles: exact matrix clocks and LDS DMA, bytes within the documented margins."""
    tm, tn, tk = kernel.tile
    # The epilogue, in which fp8 reads its scales twice, is no part of the model: a small one of a longer K.
    k = (6 if kernel.a.startswith("fp8") else 3) * tk
    # Lines of 128 bytes across K, where that is the contiguous direction.
    m, n, k = (tm + tm // 2 + 1, tn + 16, k) if kernel.layout == "nt" else (384, 640, k - 1)
    totals = estimate(Product(m, n, k), kernel).totals
    counted = choice_check.counted_launch(kernel, m, n, k)
    assert counted[MATRIX_CLOCKS] == totals.matrix_clocks
    assert counted[DMA_BYTES] == totals.lds_dma_bytes
    # Reads and stores through both ports.
    rates = CHIPS[kernel.arch].rates
    clocks = totals.lds_read_bytes / rates.lds_reads.value + totals.lds_written_bytes / rates.lds_writes.value
    assert counted[LDS_CLOCKS] == pytest.approx(2 * clocks, rel=0.15)
    assert counted[UNIQUE_BYTES] == pytest.approx(totals.unique_bytes, rel=0.05)
    assert totals.read_bytes <= counted[READ_BYTES] * 1.001
    assert counted[READ_BYTES] <= 1.25 * totals.read_bytes
    assert counted[WRITTEN_BYTES] == m * n * 2


@emulated
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_tiles_add_up_to_the_whole(kernel):
    """Counters extrapolated from single tiles and a few K tiles equal those of the entire launch."""
    tm, tn, tk = kernel.tile
    k_tiles = 6 + 3 * (KERNELS.index(kernel) % 2)
    # Scales of blocks are read for 16 rows at a time.
    m, n, k = tm + tm // 2 + (16 if "mx" in kernel.a else 3), 2 * tn + 16, (k_tiles - 1) * tk + tk // 2
    cost = estimate(Product(m, n, k), kernel)
    load = Load(Product(m, n, k), kernel)
    found = choice_check.count(replace(cost, splits=1, split_tiles=k_tiles + k_tiles % 2, load=load))
    np.testing.assert_allclose(found.total, choice_check.counted_launch(kernel, m, n, k), rtol=2e-3)


@pytest.mark.matrix("bf16")
@emulated
def test_parts_of_k_as_counted():
    """Both kernels of a split-K product move the bytes that the model predicts."""
    m, n, k = 48, 256, 8192
    a, w = (hg.asarray(np.zeros((rows, k), ml_dtypes.bfloat16)) for rows in (m, n))
    cost = ask(m, n, k, "bf16").costs[0]
    assert cost.splits > 1
    hg.emulator_counters(reset=True, addresses=True)
    hg.matmul(a, w.T)
    first, second = hg.emulator_counters(reset=True, addresses=False).each
    assert first.workgroups[0] == cost.tiles * cost.splits
    assert first.counters.matrix_clocks == cost.totals.matrix_clocks
    assert first.counters.lds_dma_bytes == cost.totals.lds_dma_bytes
    assert first.counters.global_written_bytes == cost.totals.written_bytes == 4 * m * n * cost.splits
    assert second.counters.global_read_bytes == 4 * m * n * cost.splits
    assert second.counters.global_written_bytes == 2 * m * n


@pytest.mark.matrix("bf16")
@emulated
def test_the_check_prints_its_table(capsys):
    cubes = [s for s in choice_check.SHAPES if s.what == "cube"]
    some = [*cubes[:2], choice_check.SHAPES[0]]
    assert choice_check.run(some) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith(("cube", "decode"))]
    assert len(rows) == 3
    for row in rows:
        assert re.search(r" \d+x\d+/\d+ +[a-z0-9]+( +\d+\.\d){4} +\d+( +\d+\.\d){2}$", row)
    (summary,) = (line for line in lines if line.startswith("3 shapes"))
    assert summary.startswith("3 shapes: the choice is the best one by the counters in ")
    published = [line.split() for line in lines if "published" in line][1:]
    known = choice_check.PUBLISHED.get(_hip.arch(0), ())
    for row, (form, size, best) in zip(published, known, strict=True):
        assert row[:4] == [form, f"{size}^3", "published", f"{best:.0f}"]


@pytest.mark.matrix("mxfp6_e2m3")
@emulated
def test_lines_of_narrow_weights_are_counted_as_they_are_loaded(capsys):
    """By DMA once; through registers, once for each load that asks for one."""
    (shape,) = (s for s in choice_check.SHAPES if (s.what, s.m) == ("decode, out, 8B", 32))
    assert choice_check.run([shape]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(shape.what))
    assert "bf16@mxfp6_e2m3" in row
    # Percent by which l2 differs, for the worst candidate: scales of rows past the edge.
    assert float(row.split()[-5]) < 4


@pytest.mark.skipif(
    not any(k.by_name for k in gemm_launch.KERNELS.values()), reason="no kernel has two of them"
)
@emulated
def test_both_matrix_instructions_do_the_same_work():
    """With 32 rows, half as many of twice the clocks; neither shape has bank conflicts in LDS."""
    head, _, *lines = matrix_rows.table()
    names = [cell.strip() for cell in head.split("|")[2:-1]]
    rows = [dict(zip(names, map(float, line.split("|")[2:-1]), strict=True)) for line in lines]
    assert len(rows) == 2
    for small, large in zip(rows[::2], rows[1::2], strict=True):
        assert small["MFMA"] == 2 * large["MFMA"] > 0
        assert small["MFMA clocks"] == large["MFMA clocks"] > 0
        assert small["LDS clocks"] == large["LDS clocks"] > 0
        assert small["conflicts"] == large["conflicts"] == 0


def test_thirty_shapes():
    assert len(choice_check.SHAPES) >= 30
    assert {s.m for s in choice_check.SHAPES} >= {1, 4, 8, 16, 32, 64}
