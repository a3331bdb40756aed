"""`tune`: times decide which kernel serves a product, on this device, with this driver and these kernels."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.__main__ import main
from hipgemm.inspect import explain
from hipgemm.inspect.explain import ask
from hipgemm.kernels.manifest import code_object
from hipgemm.products import run, tuned
from hipgemm.runtime import hip as _hip
from hipgemm.runtime import record
from hipgemm_benchmarks import device_clock, tune
from hipgemm_benchmarks.device_clock import Call, Clock

pytestmark = pytest.mark.matrix
Run = Callable[..., "subprocess.CompletedProcess[str]"]
SHAPE = (70, 90, 64)
LINE = "70 90 64 --op matmul --format bf16 --layout nt --dtype bf16"
WORDS = LINE.split()


class Injected:
    """A clock that makes the calls, and gives the n-th kernel of a list 100 - 10 n microseconds or so."""

    cache_bytes = 1 << 15

    def __init__(self, order: Sequence[str] = (), interrupt_at: int = 0) -> None:
        self.order, self.interrupt_at = list(order), interrupt_at
        self.samples: Counter[str] = Counter()

    def warm(self, call: Call) -> None:
        call(0)

    def sample(self, calls: Sequence[Call]) -> float:
        hg.reset_usage()
        for call in calls:
            call(0)
        _hip.synchronize()
        (name,) = hg.usage().served
        if name not in self.order:
            self.order.append(name)
        self.samples[name] += len(calls) > 1
        if sum(self.samples.values()) == self.interrupt_at > 0:
            raise KeyboardInterrupt
        return 100.0 - 10 * self.order.index(name) + self.samples[name] % 3


def read_again() -> None:
    tuned.recorded.cache_clear()
    run.forget_plans()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, configure: Callable[..., None]) -> Iterator[Path]:
    folder = tmp_path / "cache"
    configure(cache_dir=str(folder))
    read_again()
    yield folder
    read_again()


def do(*arguments: str, clock: Clock) -> int:
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    return tune.run(parser.parse_args(["--samples", "3", *arguments]), clock)


def test_the_fastest_serves(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = [cost.kernel.name for cost in ask(*SHAPE, "bf16").costs]
    assert do("70", "90", "64", clock=Injected(order)) == 0
    text = capsys.readouterr().out
    assert f"[1/1] {LINE}: {len(order)} kernels\n" in text
    fastest = 111 - 10 * len(order)
    assert f"\n    {fastest:.1f} us ({fastest - 0.8:.1f} to {fastest + 0.8:.1f}): {order[-1]}\n" in text
    assert f": {order[0]}, the cost model's choice\n" in text

    (file,) = folder.iterdir()
    content = json.loads(file.read_text())
    assert list(content["products"][LINE]) == order
    assert content["products"][LINE][order[1]] == [91.0, 90.2, 91.8]
    assert content["driver"] == _hip.driver_version()
    assert content["kernels"] == code_object(_hip.arch(0)).sha256

    x, w = np.zeros((70, 64), ml_dtypes.bfloat16), np.zeros((90, 64), ml_dtypes.bfloat16)
    a, b = hg.asarray(x), hg.asarray(w).T
    hg.reset_usage()
    hg.matmul(a, b)
    hg.matmul(a, b, activation="relu", bias=np.zeros(90, np.float32))
    hg.matmul(x, w.T)
    assert {name: row.calls for name, row in hg.usage().served.items()} == {order[-1]: 3}
    answer = hg.can_use("matmul", a, b)
    assert [name for name, _ in answer.measured] == order[::-1]
    assert answer.kernel == order[-1]
    assert main(["explain", "70", "90", "64"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"^  tuned: \d+\.0 us, .*; the model's choice, {order[0]}, took 101.0 us$", text, re.M)
    assert f"chosen: {order[-1]}, the fastest measured" in text
    # Other shapes, and an architecture that is only named, have the model's choice.
    assert not ask(70, 90, 128, "bf16").measured
    assert ask(*SHAPE, "bf16", arch=_hip.arch(0)).kernel == order[0]


@pytest.mark.parametrize(
    "line",
    [
        "70 90 64 --format f16 --layout tn --dtype f32",
        "70 90 64 --layout nn --batch 3",
        "70 96 256 --format mxfp8@mxfp4",
        "64 96 256 --format fp8 --layout tt",
        "70 96 256 --format bf16@mxfp6",
        "70 256 256 --format fp8_block",
        "96 64 70 --op grouped_matmul --groups 3 --layout nn",
        "96 64 128 --op grouped_matmul --groups 3 --format mxfp8",
        "64 96 128 --op grouped_wgrad --groups 2 --format mxfp8",
    ],
)
def test_every_kind_of_product(line: str) -> None:
    """What is recorded is what calls look for: those of arrays on a device, and those without memory."""
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    p = parser.parse_args(line.split())
    known = ask(p.M, p.N, p.K, p.format, p.layout, p.batch, p.dtype, None, p.op, p.groups)
    order = [cost.kernel.name for cost in known.costs]
    assert do(*line.split(), "--samples", "1", clock=Injected(order)) == 0
    answer = ask(p.M, p.N, p.K, p.format, p.layout, p.batch, p.dtype, None, p.op, p.groups)
    assert answer.kernel == order[-1]
    assert len(answer.measured) == len(order) > 1
    a, b = explain.stored(p.M, p.N, p.K, p.layout, p.batch, p.op, p.groups)
    dtype = None if p.dtype is None else np.float32
    call, _ = tune._Operands(p, a, b, dtype)._call(0)
    hg.reset_usage()
    call(0)
    assert list(hg.usage().served) == [order[-1]]
    (key,) = tuned.on_file(0)
    assert key in run.shapes()
    assert do(*key.split(), clock=Injected(interrupt_at=1)) == 0  # timed before: no sample


def test_of_another_device_driver_or_build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert do(*WORDS, clock=Injected()) == 0
    key = record.device_key(0)
    for name in key:
        monkeypatch.setattr(record, "device_key", lambda device, n=name: {**key, n: "another"})
        read_again()
        assert not ask(*SHAPE, "bf16").measured, name
    monkeypatch.setattr(record, "device_key", lambda device: key)
    with monkeypatch.context() as patch:
        patch.setattr(tuned, "kernels_of", lambda device: {"kernels": "0" * 64})
        read_again()
        assert not ask(*SHAPE, "bf16").measured
    read_again()
    assert ask(*SHAPE, "bf16").measured


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "no JSON object"),
        ('{"products": 3}', "'int' object has no attribute 'items'"),
        ('{"products": {"x": {"k": [1.0, -1.0, 2.0]}}}', "times must be positive"),
    ],
)
def test_a_damaged_file(folder: Path, content: str, why: str) -> None:
    assert do(*WORDS, clock=Injected()) == 0
    (file,) = folder.iterdir()
    file.write_text(content)
    read_again()
    wanted = rf"{file} is damaged and ignored \({why}.*\); to write it again: python -m hipgemm tune$"
    with pytest.warns(RuntimeWarning, match=wanted):
        assert not ask(*SHAPE, "bf16").measured
    with pytest.warns(RuntimeWarning, match=wanted):
        assert do(*WORDS, clock=Injected()) == 0
    assert ask(*SHAPE, "bf16").measured
    assert list(folder.iterdir()) == [file]


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = tmp_path / "shapes"
    shapes.write_text(f"# as a program wrote it\n{LINE}\n\n70 90 128\n")
    kernels = len(ask(*SHAPE, "bf16").costs)
    assert do("--shapes", str(shapes), clock=Injected(interrupt_at=3 * kernels + 2)) == 130
    assert "interrupted after 1 of 2" in capsys.readouterr().err
    assert list(tuned.on_file(0)) == [LINE]
    clock = Injected()
    assert do("--shapes", str(shapes), clock=clock) == 0
    text = capsys.readouterr().out
    assert f"[1/2] {LINE}: timed before, " in text
    assert "tune: 2 of 2 products have times, in " in text
    assert sum(clock.samples.values()) == 3 * kernels
    assert do("--shapes", str(shapes), "--again", clock=clock) == 0
    assert sum(clock.samples.values()) == 9 * kernels


ADD = """
import time
from pathlib import Path
from hipgemm.products.tuned import Shape, Times, add, on_file
from hipgemm.runtime import record
read = record.read
def slow(*args, **more):  # so that the other process would come between
    found = read(*args, **more)
    time.sleep(0.02)
    return found
record.read = slow
on_file(0)  # opens the device
Path("{there}/{n}").touch()
while not Path("{there}/{other}").exists():
    time.sleep(0.001)
for i in range(6):
    shape = Shape("matmul", i, {n}, 64, ("bf16", "bf16"), "nt", 0, 0, "bf16")
    add(0, shape, {{"kernel": Times(3.0, 2.0, 4.0)}})
"""


def test_processes_lose_nothing_of_each_other(run_python: Run, folder: Path, tmp_path: Path) -> None:
    def process(n: int) -> subprocess.CompletedProcess[str]:
        code = ADD.format(n=n, other=3 - n, there=tmp_path)
        return run_python(code, HIPGEMM_CACHE_DIR=str(folder))

    with ThreadPoolExecutor() as pool:
        for done in pool.map(process, (1, 2)):
            assert done.returncode == 0, done.stderr
    assert len(tuned.on_file(0)) == 12
    assert len(list(folder.iterdir())) == 1


USE = """
import ml_dtypes, numpy as np, hipgemm as hg
a, b = hg.zeros((70, 64), ml_dtypes.bfloat16), hg.zeros((90, 64), ml_dtypes.bfloat16).T
hg.matmul(a, b)
print(*hg.usage().served)
try:
    hg.config(tuned="use")
except ValueError as error:
    print(error)
"""


def test_settings(run_python: Run, folder: Path, tmp_path: Path) -> None:
    assert do(*WORDS, clock=Injected()) == 0
    shapes = tmp_path / "shapes"
    settings = {"HIPGEMM_CACHE_DIR": str(folder), "HIPGEMM_SHAPES": str(shapes)}
    assert run_python(USE, **settings).stdout == f"{ask(*SHAPE, 'bf16').kernel}\n"
    ignored = run_python(USE, **settings, HIPGEMM_TUNED="ignore").stdout.splitlines()
    assert ignored[0] == ask(*SHAPE, "bf16", arch=_hip.arch(0)).kernel
    assert "tuned must be set before the first product on a device, and is 'ignore' now" in ignored[1]
    assert shapes.read_text() == f"{LINE}\n"


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["8", "8"], "M, N and K are needed, such as 4096 4096 4096"),
        (["--shapes", "FILE"], r"FILE, line 2: argument --format: a format must be one of .*; got 'fp9'"),
        (["--shapes", "/nowhere/file"], "No such file or directory: '/nowhere/file'"),
        (["8", "8", "8", "--samples", "0"], "--samples must be positive; got 0"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shapes"
    file.write_text("8 8 8\n8 8 8 --format fp9\n")
    assert main(["tune", *(str(file) if word == "FILE" else word for word in arguments)]) == 2
    assert re.search(wrong.replace("FILE", str(file)), capsys.readouterr().err)


def test_a_folder_that_cannot_be_written(
    configure: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    configure(cache_dir="/proc/hipgemm")
    assert do(*WORDS, clock=Injected(interrupt_at=1)) == 1
    wanted = r"error: results cannot be kept in /proc/hipgemm \(.*\); HIPGEMM_CACHE_DIR names another folder"
    assert re.match(wanted, capsys.readouterr().err)


def test_a_product_without_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert do("8", "8", "8", "--format", "f32", clock=Injected()) == 1
    text = capsys.readouterr().out
    assert "[1/1] 8 8 8 --op matmul --format f32: no:\n  - a.dtype must be bfloat16" in text
    assert "tune: 0 of 1 products have times" in text


@pytest.mark.emulator("what it refuses")
def test_where_nothing_is_timed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["tune", *WORDS]) == 1
    assert "this is the emulator: how long it takes says nothing of a GPU" in capsys.readouterr().err
    monkeypatch.setattr(_hip.runtime(), "kind", "bridge")
    assert "there are none for sm_90a, only for gfx950 and gfx942" in tune._refusal("sm_90a")
    assert tune._refusal("gfx950") == ""


@pytest.mark.parametrize(("ready", "fills"), [(False, 1), (True, device_clock.MOST_FILLS)])
def test_the_device_s_clock(ready: bool, fills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fills more memory if the device was ready before all calls were queued."""
    monkeypatch.setattr(hg.Event, "query", lambda event: ready)
    a, b = hg.zeros((70, 64), ml_dtypes.bfloat16), hg.zeros((90, 64), ml_dtypes.bfloat16).T
    out = hg.zeros((70, 90), ml_dtypes.bfloat16)
    clock = device_clock.DeviceClock(1 << 16)
    one = clock.sample([lambda stream: hg.matmul(a, b, out, stream=stream)] * 3)
    assert 0 < one < 1e6
    assert clock.fills == fills
