"""Which library hip-python is made to open. Each case in a process of its own, for a choice is made once."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hipgemm.runtime import hip as _hip

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SHOW = """
import hipgemm, warnings
from hipgemm.runtime import hip as _hip
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    try:
        rt = _hip.runtime()
        print(rt.kind, rt.library, rt.devices)
    except Exception as error:
        print(type(error).__name__, "|", error)
for one in seen:
    print("warning", one.category.__name__, "|", one.message)
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Build a ROCm tree whose libamdhip64.so has nothing but hipGetDeviceCount, with this body."""

    def make(body: str) -> Path:
        root = tmp_path_factory.mktemp("rocm")
        (root / "lib").mkdir()
        source = root / "stub.c"
        source.write_text(f"#include <stdlib.h>\nint hipGetDeviceCount(int *n) {{ {body} }}\n")
        compiler = [shutil.which("cc")] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
        library = str(root / "lib" / "libamdhip64.so")
        subprocess.run([*compiler, "-shared", "-fPIC", str(source), "-o", library], check=True)
        return root

    return make


@pytest.fixture(scope="module")
def two_gpus(build) -> Path:
    return build("*n = 2; return 0;")


@pytest.fixture(scope="module")
def no_gpu(build) -> Path:
    return build("*n = 0; return 100;")


@pytest.fixture
def choose(run_python: Run, tmp_path) -> Callable[..., list[str]]:
    def run(mode: str | None, code: str = SHOW, rocm: Path | None = None, **environment: str) -> list[str]:
        environment.setdefault("LD_LIBRARY_PATH", str(tmp_path))
        done = run_python(code, HIPGEMM_RUNTIME=mode, ROCM_PATH=str(rocm or tmp_path), **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_emulator(choose):
    assert choose("emulator") == [f"emulator {_hip.EMULATOR} 1"]


def test_auto_without_rocm(choose):
    for mode in ("auto", None, ""):
        first, warning = choose(mode)
        assert first == f"emulator {_hip.EMULATOR} 1"
        assert warning == (
            "warning RuntimeFallbackWarning | hipgemm runs on its emulator: libamdhip64.so cannot be opened "
            "(HIPGEMM_RUNTIME=emulator hides this line)"
        )


def test_auto_with_gpus(choose, two_gpus):
    assert choose("auto", rocm=two_gpus) == [f"rocm {two_gpus}/lib/libamdhip64.so 2"]
    assert choose("rocm", rocm=two_gpus) == [f"rocm {two_gpus}/lib/libamdhip64.so 2"]


def test_gpus_by_the_loader_s_path(choose, two_gpus):
    found = choose("auto", LD_LIBRARY_PATH=f"{two_gpus}/lib")
    assert found == ["rocm libamdhip64.so 2"]


def test_auto_with_rocm_but_no_gpu(choose, no_gpu):
    first, warning = choose("auto", rocm=no_gpu)
    assert first.startswith("emulator ")
    assert "reports no device (error 100)" in warning


def test_auto_with_a_rocm_that_crashes(choose, build):
    first, warning = choose("auto", rocm=build("abort();"))
    assert first.startswith("emulator ")
    assert "ended with -6" in warning


def test_rocm_that_is_not_there(choose, no_gpu):
    assert choose("rocm") == [
        "RuntimeNotFoundError | no GPU by ROCm: libamdhip64.so cannot be opened (HIPGEMM_RUNTIME=rocm)"
    ]
    (text,) = choose("rocm", rocm=no_gpu)
    assert text.startswith("RuntimeNotFoundError | no GPU by ROCm: ")


def test_wrong_choice(choose):
    wanted = "auto, rocm, emulator, bridge"
    assert choose("cuda") == [f"ValueError | HIPGEMM_RUNTIME must be one of {wanted}; got 'cuda'"]


def test_emulator_wins_over_rocm(choose, two_gpus):
    found = choose("emulator", rocm=two_gpus, LD_LIBRARY_PATH=f"{two_gpus}/lib")
    assert found == [f"emulator {_hip.EMULATOR} 1"]


def test_a_copy_of_the_emulator_is_no_gpu(choose, tmp_path):
    (tmp_path / "lib").mkdir()
    shutil.copy(_hip.EMULATOR, tmp_path / "lib" / "libamdhip64.so")
    first, warning = choose("auto", rocm=tmp_path)
    assert first == f"emulator {_hip.EMULATOR} 1"
    assert "is an emulator" in warning


@pytest.mark.parametrize("mode", ["auto", "emulator"])
def test_no_runtime_at_all(choose, mode):
    code = "from hipgemm.runtime import loader\nloader.EMULATOR = loader.Path('/nowhere/lib.so')\n"
    (text,) = choose(mode, code + SHOW)
    assert text.startswith("RuntimeNotFoundError | the emulator is not built: /nowhere/lib.so is missing")
    assert text.endswith("run: make emulator")


def test_no_hip_python(choose):
    (text,) = choose("emulator", "import sys\nsys.modules['hip'] = None\n" + SHOW)
    assert text.startswith("RuntimeNotFoundError | hip-python cannot be imported")
    assert "pip install" in text


def test_damaged_emulator(choose, tmp_path):
    path = tmp_path / "libamdhip64.so"
    path.write_bytes(b"not a library")
    (text,) = choose(
        "emulator",
        f"from hipgemm.runtime import loader\nloader.EMULATOR = loader.Path({str(path)!r})\n" + SHOW,
    )
    assert text.startswith(f"RuntimeNotFoundError | {path} cannot be opened: ")


def test_another_library_is_open_already(choose, two_gpus, no_gpu):
    opened = "import ctypes\nheld = ctypes.CDLL({!r})\n"
    library = f"{two_gpus}/lib/libamdhip64.so"
    (text,) = choose("emulator", opened.format(library) + SHOW)
    assert text.startswith(
        f"RuntimeNotFoundError | HIPGEMM_RUNTIME=emulator, but this process has already opened {library}"
    )
    # As under torch: auto uses what is there.
    assert choose("auto", opened.format(library) + SHOW) == [f"rocm {library} 2"]
    (text,) = choose("auto", opened.format(f"{no_gpu}/lib/libamdhip64.so") + SHOW)
    assert "nor can the emulator take its place" in text


def test_hip_python_has_opened_another_already(choose, two_gpus):
    code = "from hip import hip\nhip.hipGetDeviceCount()\n" + SHOW
    (text,) = choose("emulator", code, LD_LIBRARY_PATH=f"{two_gpus}/lib")
    assert "this process has already opened" in text


def test_hip_python_has_failed_already(choose):
    code = "from hip import hip\ntry: hip.hipGetDeviceCount()\nexcept RuntimeError: pass\n" + SHOW
    assert choose("emulator", code) == [f"emulator {_hip.EMULATOR} 1"]


def test_the_process_is_left_as_it_was(choose):
    code = (
        "import os, sys\nbefore = dict(os.environ)\n"
        + SHOW
        + "try:\n    from rocm.bindings.util import paths\n    print(paths.get_library_path.__module__)\n"
        + "except ImportError:\n    from hip import chip\n    print(chip.DLL)\n"
        + "print(dict(os.environ) == before)"
    )
    lines = choose("emulator", code)
    assert lines[1] in ("rocm.bindings.util.paths", "b'libamdhip64.so'")
    assert lines[2] == "True"


def test_a_failed_choice_may_be_tried_again(choose, tmp_path):
    code = (
        "from pathlib import Path\nfrom hipgemm.runtime import loader as _runtime\nreal = _runtime.EMULATOR\n"
        "_runtime.EMULATOR = Path('/nowhere')\n" + SHOW + "_runtime.EMULATOR = real\n" + SHOW
    )
    lines = choose("emulator", code)
    assert lines[0].startswith("RuntimeNotFoundError")
    assert lines[1] == f"emulator {_hip.EMULATOR} 1"


def test_threads_choose_once(choose):
    code = (
        "import threading\nfrom hipgemm.runtime import hip as _hip\nfound = []\n"
        "threads = [threading.Thread(target=lambda: found.append(_hip.runtime())) for _ in range(8)]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()\n"
        "print(len(found), len(set(map(id, found))))"
    )
    assert choose("emulator", code) == ["8 1"]


def test_a_forked_child_is_told(choose):
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, hipgemm as hg
x = hg.zeros(3, np.float32)
pid = os.fork()
if pid == 0:
    try:
        hg.zeros(3, np.float32)
    except hg.RuntimeNotFoundError as error:
        print("child", error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print("parent", x.get().sum())
"""
    child, parent = choose("emulator", code)
    assert "HIP does not survive a fork" in child
    assert parent == "parent 0.0"


def test_the_warning_is_one_line(run_python, tmp_path):
    code = "from hipgemm.runtime import hip as _hip; _hip.runtime()"
    done = run_python(code, HIPGEMM_RUNTIME="auto", ROCM_PATH=str(tmp_path), LD_LIBRARY_PATH=str(tmp_path))
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("RuntimeFallbackWarning: hipgemm runs on its emulator")


def test_the_warning_s_place_is_the_caller_s(choose):
    (place,) = choose(
        "auto",
        """
import warnings
from hipgemm.runtime import hip as _hip
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    _hip.runtime()
print(seen[0].filename, seen[0].lineno, warnings.formatwarning.__module__)
""",
    )
    assert place == "<string> 6 warnings"


def test_a_wrong_variable_is_told(choose):
    (text,) = choose("emulator", HIPGEMM_EMULATOR_ASYNC="lazy")
    assert text.startswith("RuntimeNotFoundError | ")
    assert text.endswith("HIPGEMM_EMULATOR_ASYNC must be late or eager; got 'lazy')")


# ---- several devices


def test_two_devices(run_python: Run) -> None:
    done = run_python(
        """
import ml_dtypes, numpy as np, hipgemm as hg
from hipgemm import testing
from hipgemm.runtime import hip as _hip
rng = np.random.default_rng(0)
a, w = testing.random_matrix((70, 64), rng), testing.random_matrix((40, 64), rng)
for device in (1, 0):
    x, y = hg.asarray(a, device=device), hg.asarray(w, device=device)
    out = hg.matmul(x, y.T, bias=np.ones(40, np.float32))
    assert out.device == device and _hip.current_device() == 0
    testing.assert_gemm_close(out.get(), a, w.T, bias=np.ones(40, np.float32))
x0, y1 = hg.asarray(a), hg.asarray(w, device=1)
try:
    hg.matmul(x0, y1.T)
except TypeError as error:
    print(error)
x1 = hg.asarray(x0, device=1)
assert x1.device == 1 and x0.device == 0
np.testing.assert_array_equal(hg.matmul(x1, y1.T).get(), hg.matmul(x0, hg.asarray(w).T).get())
back = hg.asarray(x1[::2, 8:].T, device=0)
np.testing.assert_array_equal(back.get(), a[::2, 8:].T)
_hip.call("hipSetDevice", 1)
assert hg.zeros(1, np.int8).device == 1
testing.assert_gemm_close(hg.matmul(a, w.T), a, w.T)
assert _hip.current_device() == 1
""",
        HIPGEMM_RUNTIME="emulator",
        HIPGEMM_EMULATOR_DEVICES="2",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "matmul: a, b must live in one place; got a on device 0, b on device 1; "
        "move the others with hipgemm.asarray(x, device=0)"
    )
