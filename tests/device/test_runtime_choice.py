"""Which library hip-python opens. Each case in its own process, because the choice is made once."""

import ctypes.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fake_rocm
import pytest

from hipgemm.runtime import hip as _hip

pytestmark = pytest.mark.emulator("processes that may choose it")
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
INFO = "import hipgemm as hg\nprint(hg.info().summary)\nprint(hg.info().advice)\n"
COMPILER = [shutil.which("cc")] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Build a ROCm tree whose libamdhip64.so has only hipGetDeviceCount, with this body."""

    def make(body: str, *flags: str) -> Path:
        root = tmp_path_factory.mktemp("rocm")
        (root / "lib").mkdir()
        source = root / "stub.c"
        source.write_text(f"#include <stdlib.h>\nint hipGetDeviceCount(int *n) {{ {body} }}\n")
        library = str(root / "lib" / "libamdhip64.so")
        subprocess.run([*COMPILER, "-shared", "-fPIC", str(source), "-o", library, *flags], check=True)
        return root

    return make


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make a fake ROCm tree, by default of HIP 7.15."""
    made: dict[str, Path] = {}

    def make(**choices: object) -> Path:
        key = str(sorted(choices.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("opt") / "fake rocm"
            fake_rocm.make(made[key], **{"version": "7.15", **choices})  # type: ignore[arg-type]
        return made[key]

    return make


@pytest.fixture(scope="module")
def two_gpus(fake) -> Path:
    return fake(devices=2)


@pytest.fixture(scope="module")
def no_gpu(fake) -> Path:
    return fake(devices=0)


@pytest.fixture
def choose(run_python: Run, tmp_path) -> Callable[..., list[str]]:
    """Run a snippet with ROCm at one place, or by the loader's path alone: lines that it prints."""

    def run(mode: str | None, code: str = SHOW, rocm: Path | None = None, **environment: str) -> list[str]:
        if "LD_LIBRARY_PATH" in environment:
            code = (
                "from pathlib import Path\nfrom hipgemm.runtime import rocm as _rocm\n"
                f"_rocm.OPT = Path({str(tmp_path)!r})\n" + code
            )
            environment = {**environment, "ROCM_PATH": "", "ROCM_HOME": ""}
        else:
            environment = {**environment, "ROCM_PATH": str(rocm or tmp_path)}
        done = run_python(code, HIPGEMM_RUNTIME=mode, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def hip_version() -> tuple[int, ...]:
    """Of HIP, which the installed hip-python is made for."""
    import hip

    return tuple(hip.HIP_VERSION_TUPLE[:2])


def test_emulator(choose):
    assert choose("emulator") == [f"emulator {_hip.EMULATOR} 1"]


def test_auto_without_rocm(choose, tmp_path):
    for mode in ("auto", None, ""):
        first, warning = choose(mode)
        assert first == f"emulator {_hip.EMULATOR} 1"
        assert warning == (
            f"warning RuntimeFallbackWarning | hipgemm runs on its emulator: ROCM_PATH={tmp_path} has no "
            "lib/libamdhip64.so or lib/libamdhip64.so.N; correct it or unset it "
            "(HIPGEMM_RUNTIME=emulator hides this warning)"
        )


@pytest.mark.skipif(bool(ctypes.util.find_library("amdhip64")), reason="the loader knows a ROCm")
def test_no_rocm_anywhere(choose, tmp_path):
    _, warning = choose("auto", LD_LIBRARY_PATH=str(tmp_path))
    assert "libamdhip64.so was not found by ROCM_PATH, in /opt/rocm*, or by the loader" in warning


@pytest.mark.parametrize("devices", [1, 2])
def test_auto_with_gpus(choose, fake, devices):
    rocm = fake(devices=devices)
    assert choose("auto", rocm=rocm) == [f"rocm {rocm}/lib/libamdhip64.so {devices}"]
    assert choose("rocm", rocm=rocm) == [f"rocm {rocm}/lib/libamdhip64.so {devices}"]


def test_without_the_development_package(choose, fake):
    """As in containers: libamdhip64.so.7 alone."""
    rocm = fake(development=False)
    assert choose("rocm", rocm=rocm) == [f"rocm {rocm}/lib/libamdhip64.so.7 1"]
    by_loader = choose("rocm", LD_LIBRARY_PATH=f"{rocm}/lib")
    assert by_loader == [f"rocm {rocm}/lib/libamdhip64.so.7.15.0 1"]


def test_gpus_by_the_loader_s_path(choose, two_gpus):
    found = choose("auto", LD_LIBRARY_PATH=f"{two_gpus}/lib")
    assert found == [f"rocm {two_gpus}/lib/libamdhip64.so.7.15.0 2"]


def test_auto_with_rocm_but_no_gpu(choose, no_gpu):
    first, warning = choose("auto", rocm=no_gpu)
    assert first.startswith("emulator ")
    assert "reports no device (error 100, hipErrorNoDevice): " in warning


def test_variables_that_hide_all_gpus(choose, no_gpu):
    """In the error of the first call, and in `info`."""
    hidden = {"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": ""}
    code = "import numpy as np, hipgemm as hg\ntry: hg.zeros(3, np.int8)\nexcept Exception as e: print(e)\n"
    error, info, _ = choose("rocm", code + INFO, rocm=no_gpu, **hidden)
    for text in (error, info):
        assert (
            "(error 100, hipErrorNoDevice): ROCR_VISIBLE_DEVICES=-1 hides every GPU, since -1 is no" in text
        )
        assert "; HIP_VISIBLE_DEVICES= hides every GPU, since it is empty: unset or correct it" in text


def test_auto_with_a_rocm_that_crashes(choose, build):
    first, warning = choose("auto", rocm=build("abort();"))
    assert first.startswith("emulator ")
    assert "ended with -6 in hipGetDeviceCount" in warning


def test_rocm_that_is_not_there(choose, no_gpu, tmp_path):
    (text,) = choose("rocm")
    assert text.startswith(
        f"RuntimeNotFoundError | ROCm cannot be used: ROCM_PATH={tmp_path} has no lib/libamd"
    )
    assert text.endswith("(HIPGEMM_RUNTIME=rocm)")
    (text,) = choose("rocm", rocm=no_gpu)
    assert text.startswith("RuntimeNotFoundError | ROCm cannot be used: ")


def test_a_rocm_that_lacks_a_library(choose, build, tmp_path):
    needed = tmp_path / "libneeded.so"
    (tmp_path / "empty.c").touch()
    subprocess.run([*COMPILER, "-shared", "-o", needed, tmp_path / "empty.c"], check=True)
    rocm = build("return 0;", "-Wl,--no-as-needed", str(needed))
    needed.unlink()
    (text,) = choose("rocm", rocm=rocm)
    assert f"{rocm}/lib/libamdhip64.so cannot be opened: " in text
    assert "libneeded.so: cannot open shared object file" in text


def test_a_rocm_that_lacks_functions(choose, build):
    """Reported in one sentence, also by `info`, which never raises."""
    rocm = build("*n = 1; return 0;")
    (text,) = choose("rocm", rocm=rocm)
    assert f"{rocm}/lib/libamdhip64.so (unknown HIP) is too old: hipgemm needs ROCm 6 or newer" in text
    summary, _ = choose("rocm", INFO, rocm=rocm)
    assert summary == f"none: {text.partition(' | ')[2]}"
    rocm = build("*n = 1; return 0; } int hipRuntimeGetVersion(int *v) { *v = 70051831; return 0;")
    summary, _ = choose("rocm", INFO, rocm=rocm)
    assert re.fullmatch(
        r"none: ROCm cannot be used: \S+libamdhip64\.so \(HIP 7\.0\) lacks hipDeviceCanAccessPeer "
        r"and \d+ more, which hipgemm calls through hip-python \S+, made for HIP \d+\.\d+; repair or update "
        r"ROCm, and run: pip install 'hip-python>=7\.0,<8' \(HIPGEMM_RUNTIME=rocm\)",
        summary,
    )


def test_a_rocm_of_another_major_version(choose, fake):
    """hip-python 7 and 10 are both made for HIP 7."""
    rocm = fake(version="6.4", development=False)
    (text,) = choose("rocm", rocm=rocm)
    assert re.fullmatch(
        r"RuntimeNotFoundError \| ROCm cannot be used: hip-python \S+, made for HIP 7\.\d+, does not match "
        rf"{rocm}/lib/libamdhip64\.so\.6, HIP 6\.4 \(of AMD Instinct \(tests/fake_rocm\.py\), gfx950\); "
        r"run: pip install 'hip-python>=6\.4,<7' \(HIPGEMM_RUNTIME=rocm\)",
        text,
    )
    first, warning = choose("auto", rocm=rocm)
    assert first.startswith("emulator ")
    assert "run: pip install 'hip-python>=6.4,<7'" in warning


def test_a_rocm_that_hip_python_is_not_made_for(choose, fake):
    """It is used; `info` recommends the matching hip-python."""
    made_for_10 = hip_version()[:2] >= (7, 9)
    rocm = fake(version="7.0" if made_for_10 else "7.15")
    summary, advice = choose("rocm", INFO, rocm=rocm)
    assert summary.startswith("rocm: AMD Instinct (tests/fake_rocm.py), gfx950; HIP 7.")
    line, wanted = ("7.0 to 7.2", ">=7.0,<8") if made_for_10 else ("7.9 and newer", ">=10,<11")
    assert f"the library is ROCm {line}; it has every function that hipgemm calls; " in advice
    assert advice.endswith(f"run: pip install 'hip-python{wanted}'")


def test_a_driver_that_hangs(choose, fake):
    hurry = "from hipgemm.runtime import rocm as _rocm\n_rocm.TIMEOUT_S = 0.5\n"
    rocm = fake(hanging=True)
    (text,) = choose("rocm", hurry + SHOW, rocm=rocm)
    assert text == (
        f"RuntimeNotFoundError | ROCm cannot be used: the driver hangs: {rocm}/lib/libamdhip64.so, "
        "hipGetDeviceCount has not returned within 0.5 s; see dmesg for amdgpu, and try rocminfo "
        "(HIPGEMM_RUNTIME=rocm)"
    )
    first, warning = choose("auto", hurry + SHOW, rocm=rocm)
    assert first.startswith("emulator ")
    assert "the driver hangs" in warning


def test_a_gpu_without_kernels(choose, fake):
    code = """
import ml_dtypes, numpy as np, hipgemm as hg
x = np.ones((4, 8), ml_dtypes.bfloat16)
try:
    hg.matmul(x, x.T)
except hg.KernelNotFoundError as error:
    print(error)
"""
    (text,) = choose("auto", code, rocm=fake(arch="gfx1030"))
    assert text.startswith("matmul: no kernels for gfx1030; architectures built: gfx950")


def test_products_on_what_stands_in_for_rocm(choose, fake):
    code = """
import ml_dtypes, numpy as np, hipgemm as hg
from hipgemm import testing
from hipgemm.runtime import hip as _hip
x = np.ones((70, 96), ml_dtypes.bfloat16)
testing.assert_gemm_close(hg.matmul(x, x.T), x, x.T, exact=True)
print(_hip.runtime().kind, _hip.runtime().emulator, list(hg.usage().kernels))
"""
    (text,) = choose("rocm", code, rocm=fake(), HIPGEMM_EMULATOR_ARCH="gfx906", HIPGEMM_EMULATOR_DEVICES="0")
    assert text.startswith("rocm None ['gemm_bf16_nt_")


def test_wrong_choice(choose):
    wanted = "auto, rocm, emulator, bridge"
    assert choose("cuda") == [f"ValueError | HIPGEMM_RUNTIME must be one of {wanted}; got 'cuda'"]


def test_emulator_wins_over_rocm(choose, two_gpus):
    for place in ({"rocm": two_gpus}, {"LD_LIBRARY_PATH": f"{two_gpus}/lib"}):
        assert choose("emulator", **place) == [f"emulator {_hip.EMULATOR} 1"]


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
    library = f"{two_gpus}/lib/libamdhip64.so.7.15.0"
    (text,) = choose("emulator", opened.format(library) + SHOW)
    assert text.startswith(
        f"RuntimeNotFoundError | HIPGEMM_RUNTIME=emulator, but this process has already opened {library}"
    )
    # As after importing torch: auto uses the loaded library.
    assert choose("auto", opened.format(library) + SHOW) == [f"rocm {library} 2"]
    (text,) = choose("auto", opened.format(f"{no_gpu}/lib/libamdhip64.so") + SHOW)
    assert "the emulator cannot be used instead" in text


def test_hip_python_has_opened_another_already(choose, two_gpus):
    code = "from hip import hip\nhip.hipGetDeviceCount()\n" + SHOW
    (text,) = choose("emulator", code, LD_LIBRARY_PATH=f"{two_gpus}/lib")
    assert "this process has already opened" in text


@pytest.mark.skipif(bool(ctypes.util.find_library("amdhip64")), reason="the loader knows a ROCm")
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


def test_a_forked_child_is_reported(choose):
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


def test_a_wrong_variable_is_reported(choose):
    (text,) = choose("emulator", HIPGEMM_EMULATOR_ASYNC="lazy")
    assert text.startswith("RuntimeNotFoundError | ")
    assert text.endswith("HIPGEMM_EMULATOR_ASYNC must be late or eager; got 'lazy')")
