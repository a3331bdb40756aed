"""Settings: valid values of each variable, changing and restoring, and changes that are too late."""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hipgemm as hg
from hipgemm.config import SETTINGS, Config

Run = Callable[..., "subprocess.CompletedProcess[str]"]
NAMES = (
    "runtime, kernel, report, pool, memory_limit, cache_limit, mpi_gpu, progress, failed_primitives, "
    "tuned, shapes, cache_dir"
)
BYTES = "must be a number of bytes, such as 500000000, 512M or 16G"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)


# ---- valid values


@pytest.mark.parametrize(
    ("name", "default", "values"),
    [
        ("runtime", "auto", {"auto": "auto", "ROCM": "rocm", "emulator": "emulator", "bridge": "bridge"}),
        ("kernel", None, {"plain": "plain", "gemm_bf16_nt_64x64x64": "gemm_bf16_nt_64x64x64"}),
        ("report", False, {"1": True, "0": False}),
        ("pool", True, {"on": True, "Off": False, "1": True, "0": False}),
        ("memory_limit", None, {"4096": 4096, "1k": 1024, "512M": 512 << 20, "16GiB": 16 << 30, "0": 0}),
        ("cache_limit", None, {" 2GB ": 2 << 30}),
        ("mpi_gpu", False, {"1": True, "0": False}),
        ("progress", True, {"on": True, "off": False}),
        ("failed_primitives", "refuse", {"refuse": "refuse", "ignore": "ignore"}),
        ("tuned", "use", {"use": "use", "ignore": "ignore"}),
        ("shapes", None, {"/tmp/x": "/tmp/x"}),
        ("cache_dir", None, {"/tmp/x": "/tmp/x"}),
    ],
)
def test_values(name: str, default: Any, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert getattr(Config(), name) == default
    for text, value in {"": default, **values}.items():
        monkeypatch.setenv(SETTINGS[name].variable, text)
        assert getattr(Config(), name) == value
        monkeypatch.delenv(SETTINGS[name].variable)
        changed = Config()
        changed(**{name: text})
        assert getattr(changed, name) == value


def test_these_are_all() -> None:
    assert ", ".join(SETTINGS) == NAMES
    assert repr(Config()) == (
        "config(runtime='auto', kernel=None, report=False, pool=True, memory_limit=None, "
        "cache_limit=None, mpi_gpu=False, progress=True, failed_primitives='refuse', "
        "tuned='use', shapes=None, cache_dir=None)"
    )


@pytest.mark.parametrize(
    ("name", "text", "required"),
    [
        ("runtime", "cuda", "must be one of auto, rocm, emulator, bridge"),
        ("pool", "maybe", "must be on or off"),
        ("memory_limit", "many", BYTES),
        ("memory_limit", "1.5G", BYTES),
        ("cache_limit", "-1", BYTES),
        ("mpi_gpu", "on", "must be 0 or 1"),
    ],
)
def test_wrong_values(name: str, text: str, required: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, before = Config(), repr(Config())
    with pytest.raises(ValueError) as changed:  # noqa: PT011
        settings(**{name: text})
    assert str(changed.value) == f"config: {name} {required}; got {text!r}"
    assert repr(settings) == before
    monkeypatch.setenv(SETTINGS[name].variable, text)
    for _ in range(2):  # raised at each use
        with pytest.raises(ValueError) as found:  # noqa: PT011
            getattr(settings := Config(), name)
        assert str(found.value) == f"{SETTINGS[name].variable} {required}; got {text!r}"
    settings(**{name: None})  # a valid change replaces the invalid variable
    assert repr(settings) == before


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"color": 1}, f"a setting must be one of {NAMES}; got 'color'"),
        ({"kernel": 3}, "kernel must be text or None; got 3"),
        ({"runtime": b"rocm"}, "runtime must be text or None; got b'rocm'"),
        ({"memory_limit": 1.5}, "memory_limit must be text, a number or None; got 1.5"),
        ({"pool": []}, "pool must be text, a number or None; got []"),
    ],
)
def test_wrong_types(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        Config()(**changes)
    assert str(caught.value) == f"config: {text}"


def test_all_faults_are_listed_and_nothing_is_changed() -> None:
    settings = Config()
    with pytest.raises(TypeError) as caught:
        settings(kernel="plain", pool="maybe", mpi_gpu=2, memory_limit=())
    assert str(caught.value) == (
        "config: 3 faults:\n"
        "  - pool must be on or off; got 'maybe'\n"
        "  - mpi_gpu must be 0 or 1; got '2'\n"
        "  - memory_limit must be text, a number or None; got ()"
    )
    assert settings.kernel is None


def test_unknown_settings() -> None:
    settings = Config()
    text = f"^config has no setting 'color'; there are {NAMES}$"
    with pytest.raises(AttributeError, match=text):
        settings.color  # noqa: B018
    with pytest.raises(AttributeError, match=text):
        settings.color = "red"


def test_numbers() -> None:
    settings = Config()
    settings(memory_limit=np.int64(4096), cache_limit=2**40, pool=False, report=True, mpi_gpu=1)
    assert (settings.memory_limit, settings.cache_limit) == (4096, 2**40)
    assert (settings.pool, settings.report, settings.mpi_gpu) == (False, True, True)


# ---- reading, changing, restoring


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Config()
    monkeypatch.setenv("HIPGEMM_KERNEL", "first")
    assert settings.report is False
    for name in ("HIPGEMM_KERNEL", "HIPGEMM_POOL"):
        monkeypatch.setenv(name, "off")
    assert (settings.kernel, settings.pool) == ("first", True)


def test_changes_stay_and_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPGEMM_KERNEL", "one")
    settings = Config()
    settings(kernel="two")
    with settings(kernel="three", report=True) as inner:
        assert inner is settings
        assert (settings.kernel, settings.report) == ("three", True)
        with settings(kernel=None):
            assert settings.kernel is None
            settings.kernel = "four"  # an assignment lasts until the end of the block
            assert settings.kernel == "four"
        assert settings.kernel == "three"
        with pytest.raises(KeyError), settings(kernel="five"):
            raise KeyError
        assert settings.kernel == "three"
    assert (settings.kernel, settings.report) == ("two", False)


def test_a_variable_is_read_after_a_change_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPGEMM_POOL", "maybe")
    settings = Config()
    with settings(pool=False):
        assert settings.pool is False
    with pytest.raises(ValueError, match="HIPGEMM_POOL must be on or off"):
        settings.pool  # noqa: B018


def test_threads_see_a_change() -> None:
    seen: list[str | None] = []
    with hg.config(kernel="plain"):
        thread = threading.Thread(target=lambda: seen.append(hg.config.kernel))
        thread.start()
        thread.join()
        assert seen == ["plain"]
        thread = threading.Thread(target=lambda: setattr(hg.config, "kernel", "other"))
        thread.start()
        thread.join()
        assert hg.config.kernel == "other"


# ---- too late


def test_fixed_settings() -> None:
    settings = Config()
    settings.fix("the start", "pool", "memory_limit")
    settings(pool=True, memory_limit=None, kernel="plain")  # unchanged
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        settings(pool="off", memory_limit="4G")
    assert str(caught.value) == (
        "config: 2 faults:\n"
        "  - pool must be set before the start, and is True now; got 'off'\n"
        "  - memory_limit must be set before the start, and is None now; got '4G'; "
        "hipgemm.limit_memory changes it at any time"
    )
    assert (settings.pool, settings.memory_limit) == (True, None)


def test_what_was_fixed_meanwhile_stays() -> None:
    settings = Config()
    with settings(pool=False, kernel="plain"):
        settings.fix("the start", "pool")
    assert (settings.pool, settings.kernel) == (False, None)


LATE = """
import numpy as np, hipgemm as hg
hg.config(memory_limit="64M", runtime="emulator", pool=False)
x = hg.zeros(4, np.float32)
assert hg.memory_stats().limit == 64 << 20 and hg.info().runtime == "emulator"
for changes in ({"runtime": "rocm"}, {"pool": True}, {"memory_limit": None}, {"cache_limit": 0}):
    try:
        hg.config(**changes)
    except ValueError as error:
        print(error)
hg.config(runtime="emulator", kernel="plain", report=False, mpi_gpu=True)
hg.limit_memory(32 << 20, cache=0)
assert (hg.memory_stats().limit, hg.memory_stats().cache_limit) == (32 << 20, 0)
"""


def test_the_first_use_of_a_device_fixes_some(run_python: Run) -> None:
    done = run_python(LATE, HIPGEMM_RUNTIME="auto")
    assert done.returncode == 0, done.stderr
    late, limit = (
        "must be set before the first use of a device, and is",
        "hipgemm.limit_memory changes it at any time",
    )
    assert done.stdout.splitlines() == [
        f"config: runtime {late} 'emulator' now; got 'rocm'",
        f"config: pool {late} False now; got True",
        f"config: memory_limit {late} 67108864 now; got None; {limit}",
        f"config: cache_limit {late} None now; got 0; {limit}",
    ]


def test_a_runtime_that_was_not_found_fixes_nothing(run_python: Run, tmp_path: Path) -> None:
    code = (
        "import hipgemm as hg\n"
        "try: hg.zeros(1, 'f4')\n"
        "except hg.RuntimeNotFoundError: hg.config(runtime='emulator')\n"
        "print(hg.zeros(1, 'f4').get())"
    )
    done = run_python(code, HIPGEMM_RUNTIME="rocm", ROCM_PATH=str(tmp_path))
    assert done.stdout.strip() == "[0.]", done.stderr


def test_a_report_can_be_asked_for_later(run_python: Run) -> None:
    code = "import hipgemm as hg; hg.config(report=True)"
    assert run_python(code, HIPGEMM_REPORT=None).stderr.strip() == "hipgemm: nothing ran"
