"""The race check on our own schedules: no findings, except with a fetch, wait or barrier moved."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from compiled_once import kept
from test_check_kernels import GEMMS, run

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from instances import all_instances, unit_source  # noqa: E402
from probe import find_toolchain  # noqa: E402
from toolchain import NoCompilerError, Toolchain  # noqa: E402

Compiled = Callable[[str, list[tuple[str, str]]], bytes]
LARGE, SMALL, RING = (
    pick(
        (name for name, k in GEMMS.items() if k["schedule"] == schedule), key=lambda name: GEMMS[name]["tile"]
    )
    for pick, schedule in ((max, "PingPong"), (min, "DoubleBuffer"), (min, "Ring4"))
)

FETCH_B0 = """\
      if constexpr (kNextButOne) p.fetch_b.fetch(kIndex<0>, p.block(kStage, 0), p.k_offset.b());
"""
READ_B1 = "      p.read_b.read(stage, kIndex<1>, b1);\n"
FETCH_NEXT = """      if constexpr (kRemaining != Remaining::none) {
        p.fetch_a.fetch(kIndex<0>, p.block(1 - kStage, 0), p.k_offset.a);
        p.fetch_b.fetch(kIndex<0>, p.block(1 - kStage, 0), p.k_offset.b());
        if constexpr (kRemaining == Remaining::two_or_more) {
          p.fetch_a.next();
          p.fetch_b.next();
        }
      }
"""
COUNTED = "wait_dma<in_flight(kRemaining, kStage, kStep)>();\n      barrier();\n"
DONE = "__builtin_amdgcn_s_setprio(0);\n      barrier();\n"

# name: kernel, replacements in schedule.hpp, what the report says
FAULTS: dict[str, tuple[str, list[tuple[str, str]], list[str]]] = {
    # B0 is fetched over what the lagging waves' reads, still in flight, have to fetch. Values are right.
    "fetch_one_step_early": (
        LARGE,
        [(FETCH_B0, ""), (READ_B1, FETCH_B0 + READ_B1)],
        ["is written by lane", "was read by wave", "ds_read_b128", "buffer_load_dwordx4"],
    ),
    "weaker_wait": (
        LARGE,
        [(COUNTED, COUNTED.replace("kStep)>", "kStep) + 2>"))],
        ["is read by lane", "was written by the same wave", "In between there must be a wait for it"],
    ),
    "no_barrier_after_wait": (LARGE, [(COUNTED, COUNTED.replace("barrier();\n", "\n"))], ["LDS at 0x"]),
    "no_barrier_after_product": (LARGE, [(DONE, DONE.replace("barrier();\n", "\n"))], ["LDS at 0x"]),
    "fetch_before_barrier": (
        SMALL,
        [
            (FETCH_NEXT, ""),
            (
                "      wait_dma<0>();\n      barrier();\n",
                "      wait_dma<0>();\n" + FETCH_NEXT + "      barrier();\n",
            ),
        ],
        ["LDS at 0x", "ds_read_b128", "buffer_load_dwordx4"],
    ),
    "no_wait": (
        SMALL,
        [("      wait_dma<0>();\n      barrier();\n", "      barrier();\n")],
        ["is read by lane", "and was written by"],
    ),
    "ring_weaker_wait": (
        RING,
        [("wait_dma<(kStages - 2) *", "wait_dma<(kStages - 1) *")],
        ["is read by lane", "was written by", "In between there must be a wait for it"],
    ),
    "ring_too_short": (
        RING,
        [("fetch(stage == 0 ? kStages - 1 : stage - 1,", "fetch(stage,")],
        ["LDS at 0x", "ds_read_b128", "buffer_load_dwordx4"],
    ),
}


@pytest.fixture(scope="module")
def tools() -> Toolchain:
    try:
        return find_toolchain()
    except NoCompilerError as error:
        pytest.skip(str(error))


@pytest.fixture
def compiled(tools: Toolchain, tmp_path: Path) -> Compiled:
    return lambda kernel, replacements: compile_alone(tools, tmp_path, kernel, replacements)


def compile_alone(tools: Toolchain, folder: Path, kernel: str, replacements: list[tuple[str, str]]) -> bytes:
    """The kernel alone, from sources with these changes."""
    sources = folder / "src"
    shutil.copytree(ROOT / "src_hip", sources)
    alone = [instance for instance in all_instances(tools) if instance.kernel["name"] == kernel]
    assert alone
    (folder / "one.def").write_text(unit_source(alone))
    schedule = (sources / "gemm" / "schedule.hpp").read_text()
    for old, new in replacements:
        assert schedule.count(old) == 1, f"schedule.hpp has changed: {old}"
        schedule = schedule.replace(old, new)
    (sources / "gemm" / "schedule.hpp").write_text(schedule)

    def make(scratch: Path) -> bytes:
        assembly, object_, linked = (scratch / f"k.{end}" for end in ("s", "o", "co"))
        flags = (f"-I{folder}", '-DHIPGEMM_INSTANCES="one.def"')
        tools.compile(sources / "kernels.hip", "gfx950", assembly, *flags)
        tools.assemble(assembly, "gfx950", object_)
        tools.link([object_], linked)
        return linked.read_bytes()

    read = [folder / "one.def", *sorted(sources.rglob("*.*"))]
    return kept(make, tools.version(), *(file.read_text() for file in read))


@pytest.mark.parametrize("kernel", [LARGE, SMALL, RING])
def test_as_it_is(kernel: str, compiled: Compiled) -> None:
    assert run(compiled(kernel, []), GEMMS[kernel], "race,bounds") == ""


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str, compiled: Compiled) -> None:
    kernel, replacements, says = FAULTS[name]
    report = run(compiled(kernel, replacements), GEMMS[kernel], "race")
    assert all(part in report for part in ["race: ", *says]), report
