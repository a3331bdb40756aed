"""Random calls, each from a seed; more of them by ``--fuzz N``, one by ``--fuzz-case SEED``.

Every one is held to its bound element by element, or to the reference's bits; what lies around operands is
NaN, what lies around an output must stay as it was, and a second call must give the same bits.
"""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import fuzz
import fuzz_experts
import fuzz_groups
import fuzz_layers
import fuzz_rows
import fuzz_shards
import fuzz_stages
import pytest
from cases import try_each

HERE = Path(__file__).parent
CASES = 600  # of matmul, in CI; fewer of what uses it


CASES_OF = {"matmul": CASES, "stages": len(fuzz_stages.cases())}
KINDS = {
    "matmul": (fuzz.make, fuzz.run),
    "quantizers": (fuzz_layers.make_quantizing, fuzz_layers.run_quantizing),
    "dequantize": (fuzz_layers.make_back, fuzz_layers.run_back),
    "linear": (fuzz_layers.make_layering, fuzz_layers.run_layering),
    "groups": (fuzz_groups.make, fuzz_groups.run),
    "experts": (fuzz_experts.make, fuzz_experts.run),
    "rows": (fuzz_rows.make, fuzz_rows.run),
    "shards": (fuzz_shards.make, fuzz_shards.run),
    "stages": (fuzz_stages.make, fuzz_stages.run),  # whose cases hold all pairs of choices
}


def in_groups(kind, seed):
    """Whether a case is a product of groups, which not all architectures have."""
    stages = kind == "stages" and fuzz_stages.make(seed).how["batch"].startswith("groups")
    return stages or kind in ("groups", "experts")


def pytest_generate_tests(metafunc):
    if "seeds" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("fuzz_case")
        count = metafunc.config.getoption("fuzz")
        together = 1 if chosen or count else 20
        metafunc.parametrize(
            ("kind", "seeds"),
            [
                pytest.param(kind, seeds, id=f"{kind}-{seeds[0]}", marks=[pytest.mark.matrix] * groups)
                for kind in KINDS
                for groups, seeds in parts(
                    kind, chosen or range(count or CASES_OF.get(kind, CASES // 4)), together
                )
            ],
        )


def parts(kind, seeds, size):
    """Seeds of a kind, so many together, those of groups by themselves."""
    for groups in (False, True):
        alike = [seed for seed in seeds if in_groups(kind, seed) == groups]
        for start in range(0, len(alike), size):
            yield groups, alike[start : start + size]


def test_calls(kind, seeds):
    try_each(seeds, partial(call, kind))


def call(kind, seed):
    make, run = KINDS[kind]
    case = make(seed)
    try:
        run(case)
    except Exception as error:
        again = f"python -m pytest tests/device/test_fuzz.py -k {kind} --fuzz-case {seed}"
        raise AssertionError(f"{error}\n{case}\nagain by: {again}") from error


# Emulator settings: (variables, every which case)
MACHINES = [
    ({"THREADS": "1", "WAVES": "forward", "MEMORY": "early"}, 9),
    ({"THREADS": "3", "WAVES": "reverse", "MEMORY": "random:1"}, 9),
    ({"THREADS": "2", "WAVES": "random:7", "MEMORY": "late-vm", "ASYNC": "eager"}, 23),
    ({"THREADS": "2", "CHECK": "all"}, 23),
]


@pytest.fixture
def in_a_child(monkeypatch):
    """Run cases in another process with other emulator settings; their digests."""

    def run(seeds, variables):
        for name, value in variables.items():
            monkeypatch.setenv(f"HIPGEMM_EMULATOR_{name}", value)
        monkeypatch.setenv("HIPGEMM_POOL", "off")  # all memory is newly allocated, which the emulator poisons
        command = [sys.executable, HERE / "fuzz.py", *map(str, seeds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return [line.split()[0] for line in done.stdout.splitlines()]

    return run


@pytest.mark.emulator("orders of waves, memory modes, sanitizers")
@pytest.mark.parametrize(("variables", "stride"), MACHINES, ids=["-".join(v.values()) for v, _ in MACHINES])
def test_the_same_bits_on_any_machine(variables, stride, in_a_child, request):
    seeds = request.config.getoption("fuzz_case") or range(stride // 2, CASES, stride)
    here = [fuzz.digest(fuzz.run(fuzz.make(seed))) for seed in seeds]
    there = in_a_child(seeds, variables)
    different = [seed for seed, x, y in zip(seeds, here, there, strict=True) if x != y]
    assert not different, f"other bits in cases {different} with {variables}"


@pytest.mark.emulator("a device of another architecture")
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])  # whose code the emulator can execute
def test_other_architectures(arch, in_a_child, request):
    seeds = request.config.getoption("fuzz_case") or range(0, CASES, 17)
    assert len(in_a_child(seeds, {"ARCH": arch})) == len(seeds)


@pytest.mark.emulator("sanitizers")
def test_all_kinds_under_all_checks():
    environment = {**os.environ, "HIPGEMM_EMULATOR_CHECK": "all", "HIPGEMM_POOL": "off"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "test_calls"]
    done = subprocess.run([*command, "--fuzz", "15"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-5000:]
    ended = [int(count) for count in re.findall(r"(\d+) (?:passed|skipped)", done.stdout.splitlines()[-1])]
    assert sum(ended) == 15 * len(KINDS)
