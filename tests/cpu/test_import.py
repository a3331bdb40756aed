"""Importing hipgemm loads no GPU library, and every exported name exists."""

import subprocess
from collections.abc import Callable

import hipgemm

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_import_opens_nothing(run_python: Run) -> None:
    done = run_python(
        "import sys, hipgemm\n"
        "maps = open('/proc/self/maps').read()\n"
        "print('amdhip' in maps, 'hip' in sys.modules, 'rocm' in sys.modules)"
    )
    assert done.stdout.split() == ["False", "False", "False"], done.stderr


def test_pure_questions_open_nothing(run_python: Run) -> None:
    done = run_python(
        "import sys, hipgemm, ml_dtypes, numpy as np\n"
        "x = np.zeros((4, 8), ml_dtypes.bfloat16)\n"
        "hipgemm.can_use('matmul', x, x.T, arch='gfx950')\n"
        "try: hipgemm.matmul(x, x)\n"
        "except ValueError: pass\n"
        "hipgemm.usage()\n"
        "print('hip' in sys.modules, 'amdhip' in open('/proc/self/maps').read())"
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_import_is_light(run_python: Run) -> None:
    """Its time is measured by `python -m hipgemm bench`; here, what it imports beyond NumPy and ml_dtypes."""
    done = run_python(
        "import ml_dtypes, numpy, sys\n"
        "before = set(sys.modules)\n"
        "import hipgemm\n"
        "print(*set(sys.modules) - before)"
    )
    modules = done.stdout.split()
    ours = [name for name in modules if name.split(".")[0] == "hipgemm"]
    others = sorted(set(modules) - set(ours))
    assert len(ours) > 40, done.stderr
    assert not {"hipgemm.testing", "hipgemm_benchmarks", "hipgemm.__main__"} & set(ours)
    assert not {"importlib.metadata", "concurrent.futures", "argparse", "email", "logging"} & set(others)
    assert len(others) < 45, others


def test_exports() -> None:
    assert sorted(hipgemm.__all__) == hipgemm.__all__
    for name in hipgemm.__all__:
        assert getattr(hipgemm, name).__doc__, name
