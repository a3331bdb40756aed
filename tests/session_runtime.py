"""The runtime of a test run: opened before collection, printed at the start and end.

A process has one runtime. What HIPGEMM_RUNTIME asks for (or what auto chooses) is opened first, so that no
test can open another; a run that cannot have what it asks for ends at once. Child processes are held to the
same. Tests that need a feature of the emulator have the marker `emulator` with the reason, and run
there only. Where the runtime is another one, `make test` runs them in processes of their own: --part=others
is followed by --part=emulated.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EMULATOR_FOLDER = HERE / "emulator"
# Folders and files whose tests take longest.
LONG = {"packaging", "multi", "test_other_archs.py", "test_failing_calls.py", "test_gfx942.py"}
ASKED_EXPLICITLY = ("rocm", "emulator", "bridge")


class SessionRuntime:
    """The plugin."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.part: str = config.getoption("part")
        self.listing: bool = config.getoption("needs")
        self.runtime: str | None = None
        self.summary = ""
        self.outcomes: Counter[str] = Counter()
        self.needs: dict[str, Counter[str]] = {}

    # ---- the runtime ----------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.open()

    def open(self) -> str | None:
        """Open the runtime; return its name."""
        if self.part == "emulated" or self.listing:
            os.environ["HIPGEMM_RUNTIME"] = "emulator"
        asked = os.environ.get("HIPGEMM_RUNTIME", "").lower()
        import hipgemm as hg

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hg.RuntimeFallbackWarning)  # the header reports it
            info = hg.info()
        self.runtime, self.summary = info.runtime, info.summary
        if asked in ASKED_EXPLICITLY and info.runtime != asked:
            pytest.exit(f"HIPGEMM_RUNTIME={asked}, but the tests would run on {info.summary}", returncode=2)
        if info.runtime:
            os.environ["HIPGEMM_RUNTIME"] = info.runtime  # for child processes
        return info.runtime

    def pytest_report_header(self) -> str:
        return f"hipgemm on {self.summary}"

    # ---- which tests ------------------------------------------------------------------------------------

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """The emulator's own tests need it for being imported; files that are named skip themselves."""
        wanted = self.runtime == "emulator" and self.part != "others"
        return None if wanted or collection_path != EMULATOR_FOLDER else True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        here, left_out = [], []
        files = {item.path for item in items}
        of_the_emulator = {file for file in files if EMULATOR_FOLDER in file.parents}
        for item in items:
            if item.path in of_the_emulator:
                item.add_marker(pytest.mark.emulator("it is the emulator that is tested"))
            needed = _needed(item)
            emulated = bool(needed)
            self.needs.setdefault(needed, Counter())[_function(item)] += 1
            wanted = self.runtime == "emulator" if emulated else True
            if self.part != "all":
                wanted = wanted and emulated == (self.part == "emulated")
            (here if wanted else left_out).append(item)
        if left_out:
            self.config.hook.pytest_deselected(items=left_out)
        items[:] = spread(here, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
        if self.listing:
            items[:] = []

    # ---- reports ---------------------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        on_device = report.nodeid.startswith(("tests/device/", "tests/multi/", "tests/bridge/"))
        if on_device and (report.when == "call" or (report.outcome != "passed" and report.when == "setup")):
            self.outcomes[report.outcome] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.listing and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        line = terminalreporter.write_line
        if self.listing:
            for reason in sorted(self.needs):
                tests = self.needs[reason]
                total = f"{sum(tests.values())} tests of {len(tests)} functions"
                line(
                    f"needs the emulator: {reason} ({total})" if reason else f"runs on any runtime ({total})"
                )
                for name, count in tests.items():
                    line(f"    {name}" + (f" ({count})" if count > 1 else ""))
            return
        counts = (
            ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items())) or "none run"
        )
        line(f"hipgemm on {self.summary}")
        line(f"tests of device, multi and bridge on {self.runtime}: {counts}")
        if self.runtime != "emulator" and self.part == "all":
            line(
                "tests that need the emulator are not among these; they run by: "
                "python -m pytest --part=emulated"
            )


def spread(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Put long tests first in each process, or one would run them when the others have ended.

    At the start pytest-xdist gives each process as many tests in a row. Tests of a file, which may share what
    takes long, stay together.
    """
    long = [item for item in items if LONG & {item.path.parent.name, item.path.name}]
    rest = [item for item in items if not LONG & {item.path.parent.name, item.path.name}]
    files = sorted(dict.fromkeys(item.path for item in long), key=lambda path: path.name != "test_install.py")
    found: list[pytest.Item] = []
    for process in range(processes):
        mine = files[process::processes]
        found += [item for item in long if item.path in mine]
        share = max(0, len(items) * (process + 1) // processes - len(found))
        found += rest[:share]
        del rest[:share]
    return found


def _needed(item: pytest.Item) -> str:
    """The feature of the emulator that a test needs, by its marker; "" for none."""
    marker = item.get_closest_marker("emulator")
    if marker is None:
        if "emulator" in getattr(item, "fixturenames", ()):
            raise pytest.UsageError(
                f"{item.nodeid} uses the fixture emulator, but has no marker emulator(reason)"
            )
        return ""
    if len(marker.args) != 1 or not isinstance(marker.args[0], str):
        raise pytest.UsageError(f"{item.nodeid}: the marker emulator takes the reason, one text")
    return marker.args[0]


def _function(item: pytest.Item) -> str:
    return item.nodeid.split("[")[0]
