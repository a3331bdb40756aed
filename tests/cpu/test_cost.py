"""The cost model: its terms by hand, its figures against the manifest, and what must grow."""

import timeit
from dataclasses import replace
from itertools import pairwise

import pytest
from cases import each

from hipgemm.config import config
from hipgemm.inspect.explain import ask
from hipgemm.kernels.manifest import ARCHS, GEMMS, Kernel, code_object, load_manifest
from hipgemm.products.chips import CHIPS
from hipgemm.products.cost import Load, Product, copy_clocks, estimate

LOOP = {"ds_read": 24, "ds_read_bytes": 24 * 1024}
BIG = Kernel(
    "big", "gemm", "gfx950", 512, (256, 256, 64), (), "bf16", "bf16", "nt",
    workgroups_per_cu=1, schedule="PingPong", lds=131072, main_loop=LOOP,
)  # fmt: skip
SMALL = Kernel(
    "small", "gemm", "gfx950", 256, (64, 64, 64), (), "bf16", "bf16", "nt",
    workgroups_per_cu=4, schedule="DoubleBuffer", lds=32768, main_loop={"ds_read": 8},
)  # fmt: skip
PLAIN = Kernel("plain", "plain", "gfx950", 256, (64, 64, 16), (), workgroups_per_cu=4)
BUILT = [k for code in load_manifest().values() for k in code.kernels.values() if k.op in GEMMS]
every_kernel = each(
    "arch, kernel", [(k.arch, k) for k in BUILT], by="arch", ids=lambda x: getattr(x, "name", x)
)


def terms(x, kernel):
    return {term.name: term.clocks for term in estimate(x, kernel).terms}


def test_terms_of_a_cube_by_hand():
    """4096^3 in 256 x 256 tiles: one on each of 256 units, 64 K tiles each."""
    found = estimate(Product(4096, 4096, 4096), BIG)
    assert (found.splits, found.tiles, found.rounds) == (1, 256, 1)
    operands, result = 2 * 4096 * 4096 * 2, 4096 * 4096 * 2
    memory = 8e12 * 0.56 / 2.4e9
    loop = {
        "matrix": 64 * 2048,  # 64 MFMAs of 16 clocks, 8 waves on 4 SIMDs
        "lds": 64 * (8 * 24 * 1024 / 256 + 512 * 128 / 128),
        "l2": 64 * 512 * 128 / 45,
        # An XCD computes 32 tiles, 8 x 4, which read 8 + 4 panels of 256 x 4096.
        "fabric": (8 * 12 * 256 * 4096 * 2 + result) / 7167,
        "memory": operands / (6442e9 / 2.4e9) + result / memory,
        "latency": 64 * 2048,  # multiplying takes longer than a fetch does
    }
    added = {
        "power": 64 * 2048 * (1 / 0.62 - 1),  # busy all the time
        "uneven": 0.02 * (sum(loop.values()) - loop["matrix"]),
        "launch": 1032,
        "start": 700 + 1344,
        "store": 256 * 256 * 2 / 45 + 230,
    }
    assert {term.name: term.clocks for term in found.terms} == pytest.approx({**loop, **added})
    assert found.clocks == pytest.approx(64 * 2048 + sum(added.values()))
    assert found.microseconds == pytest.approx(found.clocks / 2400)
    assert found.bound == "matrix"


def test_terms_of_a_decode_step_by_hand():
    """One row: 64 tiles of 64 columns; K = 4096 is 64 K tiles, split to keep the units busy."""
    found = estimate(Product(1, 4096, 4096), SMALL)
    splits, steps = found.splits, found.split_tiles
    assert splits > 1
    assert steps % 2 == 0
    assert splits == -(-64 // steps)
    workgroups = 64 * splits
    mine = -(-workgroups // 256)
    assert found.rounds == -(-mine // 4) == 1
    workspace = 4 * 4096 * splits
    clocks = {term.name: term.clocks for term in found.terms}
    assert clocks["matrix"] == mine * steps * 64 * 64 * 64 / 2048
    assert clocks["l2"] == pytest.approx(mine * steps * (1 + 64) * 128 / 45)
    assert clocks["latency"] == steps * 1344
    written = 8e12 * 0.56 / 2.4e9
    assert splits * 4097 / 64 > 256  # so many workgroups read what no other does
    assert clocks["memory"] == pytest.approx(4096 * 4097 * 2 / (6442e9 / 2.4e9) + workspace / written)
    result = 4096 * 2 / written
    assert clocks["reduction"] == pytest.approx(1032 + 700 + 1344 + 230 + workspace / 7167 + result)


@pytest.mark.parametrize("kernel", [BIG, SMALL, PLAIN], ids=lambda k: k.name)
@pytest.mark.parametrize(
    "x", [Product(1, 1, 0), Product(16, 4096, 4096), Product(4352, 4096, 999, 3)], ids=str
)
def test_the_estimate_is_what_its_terms_add_up_to(x, kernel):
    found = estimate(x, kernel)
    longest = max(term.clocks for term in found.terms if term.overlaps)
    assert found.clocks == pytest.approx(longest + sum(t.clocks for t in found.terms if not t.overlaps))
    assert all(term.name and term.formula and term.source for term in found.terms)


@every_kernel
def test_work_of_a_k_tile_is_what_was_compiled(arch, kernel):
    """Matrix clocks and LDS bytes that the model expects are those of the instructions in the main loop."""
    load, loop = Load(Product(4096, 4096, 4096), kernel), kernel.main_loop
    passes = {16: 4, 8: 8, 6: 4, 4: 4}[kernel.mfma_bits or kernel.bits] * kernel.mfma_rows // 16
    if arch == "gfx942":
        passes = 4  # of half the K, or of a quarter
    assert load.matrix_step == loop["mfma"] * passes * 4 * load.waves / 4
    assert load.stage_bytes == (loop["dma"] * 1024 or loop["ds_write_bytes"]) * load.waves
    assert load.lds_bytes == loop["ds_read_bytes"] * load.waves
    assert load.resident * kernel.lds <= {"gfx950": 160, "gfx942": 64}[kernel.arch] * 1024


@every_kernel
def test_parts_of_k(arch, kernel):
    """Every part has work, and begins at an even K tile."""
    for k in (0, 1, 63, 128, 129, 1000, 4096, 4097, 14336, 100_003):
        for m, n in ((1, 1), (16, 4096), (300, 500), (4096, 4096)):
            load = Load(Product(m, n, k), kernel)
            turns = load.k_tiles + load.k_tiles % 2
            seen = list(load.choices())
            assert seen[0] == (1, turns)
            assert [s for s, _ in seen] == sorted({s for s, _ in seen})
            for splits, tiles in seen:
                assert tiles % 2 == 0
                assert (splits - 1) * tiles < turns <= splits * tiles
            found = estimate(load.x, kernel)
            assert (found.splits, found.split_tiles) in seen


def test_bytes_in_flight_limit_small_tiles():
    """Four workgroups of a unit want 4 x 64 KiB; 44 KiB are in flight, for longer where they miss L2."""
    load = Load(Product(4096, 4096, 8192), replace(SMALL, tile=(256, 64, 64)))
    missed = load.missed_bytes / load.read_bytes
    assert 0 < missed < 1
    expected = 4 * 128 * 320 * 128 / (44 * 1024) * (1000 + 344 * missed)
    assert load.overlapping(1, 128).latency == pytest.approx(expected)


def test_scales_take_time_before_short_instructions_only():
    """20 clocks instead of 16: of 4 bits with 16 rows."""
    x = Product(4096, 4096, 4096)
    mx = replace(BIG, op="scaled_gemm", tile=(256, 256, 256), a="mxfp4_e2m1", b="mxfp4_e2m1")
    fp8 = replace(mx, a="mxfp8_e4m3", b="mxfp8_e4m3")
    found = [terms(x, k) for k in (mx, replace(mx, mfma_rows=32), replace(mx, a="mxfp8_e4m3"), fp8, BIG)]
    assert [t.get("issue") for t in found] == [found[0]["matrix"] * 20 / 16, None, None, None, None]


def test_the_clock_falls_with_the_share_of_busy_matrix_units():
    """It falls by less than the share rises, so that a kernel of fewer clocks is never the slower one."""
    clock_at = CHIPS["gfx950"].rates.clock_at
    rates = [(busy / 100 * clock_at(busy / 100), clock_at(busy / 100)) for busy in range(101)]
    for (work, clock), (more, slower) in pairwise(rates):
        assert work < more
        assert slower <= clock
    idle = Load(Product(64, 64, 4096), SMALL)
    assert idle.slower(idle.overlapping(1, 64)) < 0.01 * max(idle.overlapping(1, 64))


@pytest.mark.parametrize("kernel", [BIG, SMALL, PLAIN], ids=lambda k: k.name)
@pytest.mark.parametrize("field", ["m", "n", "k", "batches", "out_bytes"])
def test_more_work_never_takes_less(kernel, field):
    for x in (
        Product(1, 1, 1),
        Product(16, 4096, 4096),
        Product(1000, 1000, 1000, 2),
        Product(4096, 4096, 512),
    ):
        before = getattr(x, field)
        larger = [
            replace(x, **{field: n}) for n in (before, before + 1, 2 * before, 3 * before + 5, 16 * before)
        ]
        if field == "k":  # in lines of memory: rows that begin inside one touch one more
            larger = [replace(y, k=-(-y.k // 64) * 64) for y in larger]
        for low, high in pairwise(sorted(larger, key=lambda y: getattr(y, field))):
            # In one part: parts of K are steps, and the best number of them may be skipped.
            clocks = [sum(load.overlapping(1, load.k_tiles + 1)) + sum(load.added(1))
                      for load in (Load(low, kernel), Load(high, kernel))]  # fmt: skip
            assert clocks[0] <= clocks[1] * (1 + 1e-12)


def test_the_units_are_filled_in_rounds():
    for tiles, rounds in ((1, 1), (256, 1), (257, 2), (512, 2), (2049, 9)):
        load = Load(Product(256 * tiles, 256, 64), BIG)
        assert (load.tiles, load.rounds(1)) == (tiles, rounds)
    # Four workgroups of the small tile share a unit.
    assert [Load(Product(64 * n, 64, 64), SMALL).rounds(1) for n in (1024, 1025)] == [1, 2]


def test_a_shared_operand_is_read_from_memory_once():
    own, shared = (Load(Product(64, 4096, 4096, 8, 8, b), SMALL) for b in (8, 1))
    assert own.unique_bytes - shared.unique_bytes == 7 * 4096 * 4096 * 2
    assert own.read_bytes == shared.read_bytes


def test_choices_that_everybody_expects():
    def best(m, n, k, **more):
        return min(
            (estimate(Product(m, n, k, **more), kernel) for kernel in (BIG, SMALL, PLAIN)),
            key=lambda c: c.clocks,
        )

    assert best(8192, 8192, 8192).kernel is BIG
    assert best(8192, 8192, 8192).splits == 1
    assert best(64, 64, 64).kernel is SMALL
    assert best(64, 64, 64).splits == 1
    assert best(16, 4096, 14336).splits > 1
    assert best(64, 64, 64, batches=4096).splits == 1
    assert estimate(Product(4096, 4096, 4096), PLAIN).clocks > 10 * best(4096, 4096, 4096).clocks


def test_some_kernels_are_used_by_name_only():
    found = [k for k in code_object("gfx950").kernels.values() if k.by_name]
    assert found
    for kernel in found:
        asked = 4096, 4096, 4096, kernel.a
        considered = [cost.kernel.name for cost in ask(*asked, arch="gfx950").costs]
        assert considered
        assert not {k.name for k in found} & set(considered)
        with config(kernel=kernel.name):
            assert ask(*asked, arch="gfx950").kernel == kernel.name


def test_rates_are_those_of_published_products():
    """The best published times on MI355X: the model's parameters of the chip are close."""
    fp8 = replace(BIG, op="scaled_gemm", tile=(256, 256, 128), a="fp8_e4m3", b="fp8_e4m3")
    for kernel, size, teraflops in (
        (BIG, 4096, 1412.9), (BIG, 8192, 1610.5), (BIG, 16384, 1571.5),
        (fp8, 4096, 2748.8), (fp8, 8192, 3327.5), (fp8, 16384, 3377.8),
    ):  # fmt: skip
        modelled = 2 * size**3 / estimate(Product(size, size, size), kernel).microseconds / 1e6
        assert 0.85 < modelled / teraflops < 1.15


def test_a_product_of_nothing_has_an_estimate():
    assert terms(Product(0, 0, 0), BIG)["memory"] == 0


def test_copies_cost_their_bytes():
    assert copy_clocks(0, 0) == 1032 + 700 + 1344 + 230
    assert copy_clocks(2**30, 2**30) - copy_clocks(0, 0) == pytest.approx(2**31 / (8e12 * 0.56 / 2.4e9))


def test_every_rate_says_where_it_is_from():
    assert set(CHIPS) == set(ARCHS)
    for chip in CHIPS.values():
        rates = chip.rates.named()
        assert all(rate.unit and rate.source for rate in rates.values())
        assert [name for name, rate in rates.items() if not rate.value > 0] == ["memory reads, 0% of the CUs"]


# Dense peaks in TFLOP/s, as the makers publish them, by the bits of an element.
PEAKS = {
    "gfx950": {16: 2516, 8: 5033, 6: 10066, 4: 10066},
    "gfx942": {16: 1307, 8: 2615},
    "gfx90a": {16: 191.5},
    "gfx1100": {16: 123},
    "gfx1201": {16: 195, 8: 389},
}


@pytest.mark.parametrize("arch", ARCHS)
def test_the_rates_of_each_architecture_give_its_published_peaks(arch):
    chip = CHIPS[arch]
    peaks = {
        bits: 2 * rate.value * chip.compute_units * chip.ghz / 1e3 for bits, rate in chip.rates.matrix.items()
    }
    assert peaks == pytest.approx(PEAKS[arch], rel=5e-3)


@pytest.mark.parametrize("arch", [arch for arch in ARCHS if arch != "gfx950"])
def test_no_estimate_is_above_what_the_chip_can_do(arch):
    """The plain kernel has vector instructions: 64 multiply-adds a clock, whatever matrix instructions do."""
    made = estimate(Product(4096, 4096, 4096), replace(PLAIN, arch=arch))
    chip = CHIPS[arch]
    assert made.load.rates is chip.rates
    assert 2 * 4096**3 / made.microseconds / 1e6 < 2 * 64 * chip.compute_units * chip.ghz / 1e3


def test_an_estimate_is_quick():
    """All candidates of a product in about a millisecond on an idle machine; ten on a busy one."""
    some = [k for k in BUILT if (k.arch, k.a, k.b) == ("gfx950", "bf16", "bf16")]
    for x in (Product(16, 4096, 14336), Product(512, 512, 512), Product(4352, 4096, 16384)):
        assert min(timeit.repeat(lambda: [estimate(x, k) for k in some], number=1, repeat=10)) < 10e-3  # noqa: B023
