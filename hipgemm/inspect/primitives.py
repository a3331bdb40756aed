"""The verdicts of ``python -m hipgemm selftest --primitives``: each in a process of its own.

One fault of a GPU ends a process, and an instruction that never completes would stop it. So this process
opens no device: it forks a child for each primitive, and one that describes the devices.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import HipError, RuntimeNotFoundError
from ..kernels import launch
from ..kernels.manifest import Kernel, code_object
from ..kernels.primitives import PREFIX, PRIMITIVES, Primitive
from ..runtime import hip, loader, record, staging
from .info import info
from .known_answers import CASES, Case, halves, order_inputs, orders

Array = npt.NDArray[Any]
SECONDS = 180.0  # that one may take: where a driver compiles the kernels, the first does
# Whose sums are looked at.
ORDER_KERNELS = ("mfma_bf16", "mfma_f16", "mfma_fnuz", "mfma_e4m3", "mfma_scale_e4m3")
PORTABLE_KERNEL = "add"  # of the primitives that are about memory and streams
_SHOWN = 3  # differences in a message


class WrongError(Exception):
    """What was expected, and what came."""


# ---- one launch ------------------------------------------------------------------------------------


def _run(device: int, kernel: str, case: Case) -> Array:
    """Launch a primitive's kernel; return the words of its output."""
    count = sum(x.nbytes for x in case.expected) // 4
    source = np.ascontiguousarray(case.words).reshape(-1).view(np.uint32)
    out = np.full(count, case.initial, np.uint32)
    memory = [hip.allocate(x.nbytes, device, 0) for x in (source, out)]
    for block, x in zip(memory, (source, out), strict=True):
        hip.copy("HostToDevice", block.ptr, x.ctypes.data, x.nbytes, 0)
    function = launch.function(device, PREFIX + kernel)
    launch.launch(function, case.groups, 0, **{"in": memory[0].ptr, "out": memory[1].ptr, "n": case.n})
    hip.copy("DeviceToHost", out.ctypes.data, memory[1].ptr, out.nbytes, 0)
    hip.synchronize()
    return out


def _parts(out: Array, case: Case) -> Iterator[tuple[Array, Array]]:
    """Each part of the expected output, and the same words of the output."""
    rows = len(case.expected[0])
    words, first = out.reshape(rows, -1), 0
    for expected in case.expected:
        expected = np.ascontiguousarray(expected).reshape(rows, -1)
        last = first + expected.nbytes // 4 // rows
        yield expected, np.ascontiguousarray(words[:, first:last]).view(expected.dtype)
        first = last


def _compare(out: Array, case: Case, kernel: str) -> None:
    for number, (expected, found) in enumerate(_parts(out, case)):
        same = _bits(expected) == _bits(found)
        if expected.dtype.kind not in "iu":
            same |= np.isnan(expected) & np.isnan(found)
        if same.all():
            continue
        lines = [
            f"{case.rows} {row}, value {column}: expected {_shown(expected[row, column])}, "
            f"got {_shown(found[row, column])}"
            for row, column in np.argwhere(~same)[:_SHOWN]
        ]
        part = f", part {number + 1} of the result" if len(case.expected) > 1 else ""
        count = f"{np.count_nonzero(~same)} of {same.size} values are wrong ({PREFIX}{kernel}{part})"
        raise WrongError("; ".join([count, *lines]))


def _bits(x: Array) -> Array:
    return x.view(f"u{x.dtype.itemsize}")


def _shown(x: Any) -> str:
    if x.dtype.kind in "iu":
        return f"{int(x):#x}"
    return f"{float(x)!r}"


# ---- primitives that are more than a launch -------------------------------------------------------------


def _sum_order(device: int) -> str:
    """Which order each kind of matrix instruction adds in."""
    built = code_object(hip.arch(device)).kernels
    found = [name for name in ORDER_KERNELS if PREFIX + name in built]
    return "; ".join(f"{name}: {_order_of(name, device)}" for name in found)


def _order_of(kernel: str, device: int) -> str:
    case, products, c = order_inputs(kernel)
    ((_, found),) = _parts(_run(device, kernel, case), case)
    k = products.shape[-1]
    if hip.arch(device) == "gfx942":
        products = products[..., halves(k)]
    exact = c.astype(np.float64) + products.sum(axis=-1)
    total = np.abs(c) + np.abs(products).sum(axis=-1)

    def placed(x: Array) -> Array:
        lane, r = np.arange(64)[:, None], np.arange(4)
        return np.asarray(x[lane % 16, 4 * (lane // 16) + r])

    units = float((np.abs(found - placed(exact)) / (placed(total) * 2.0**-24)).max())
    for order in orders(k):
        if (placed(order(products, c)) == found).all():
            return f"{order.name}, so n = {order.roundings} for {k} of K in the error bound"
    if units <= k + 1:
        return f"in no known order; the error is {units:.2f} of at most {k + 1} units"
    bound = f"at most {k + 1} units, 2^-24 of the sum of magnitudes"
    raise WrongError(f"{kernel}: expected an error of {bound}; got {units:.2f}")


def _arguments(device: int) -> str:
    function = launch.function(device, PREFIX + "arguments")
    out = np.zeros(64, np.uint64)
    block = hip.allocate(out.nbytes, device, 0)
    given: dict[str, Any] = {
        "in": 0x1122334455667788,
        "out": block.ptr,
        "n": 0x89ABCDEF,
        "stride": -(2**40) - 3,
        "alpha": -1.5,
        "other": 0xF0E1D2C3B4A59687,
        "a": 1,
        "b": 0xFFFFFFFE,
        "eps": 2.0**-140,
        "last": 2**62 + 1,
    }
    hip.clear(block.ptr, out.nbytes, 0)
    launch.launch(function, 1, 0, **given)
    hip.copy("DeviceToHost", out.ctypes.data, block.ptr, out.nbytes, 0)
    hip.synchronize()
    for i, argument in enumerate(function.args):
        value = given[argument.name]
        bits = int(np.float32(value).view(np.uint32)) if argument.type == "f32" else value & (2**64 - 1)
        if int(out[i]) != bits:
            where = f"argument {argument.name} ({argument.type} at offset {argument.offset})"
            raise WrongError(f"{where}: expected {bits:#x}, got {int(out[i]):#x}")
    return ""


def _add(device: int, source: int, target: int, count: int, n: int, stream: int = 0) -> None:
    launch.launch(
        launch.function(device, PREFIX + PORTABLE_KERNEL),
        count // 64,
        stream,
        **{"in": source, "out": target, "n": n},
    )


def _expect(name: str, found: Array, expected: Array) -> None:
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        i = wrong[0]
        raise WrongError(f"{name}: word {i}: expected {int(expected[i]):#x}, got {int(found[i]):#x}")


def _pinned_flags(device: int) -> str:
    count = 4096
    values = np.arange(count, dtype=np.uint32) * np.uint32(0x10001)
    block = hip.allocate(values.nbytes, device, 0)
    with staging.acquired(device, values.nbytes, 0) as buffer:
        pinned = buffer.array[: values.nbytes].view(np.uint32)
        address = int(hip.call("hipHostGetDevicePointer", buffer.ptr, 0))
        for turn in range(3):
            pinned[:] = values + np.uint32(turn)
            _add(device, address, block.ptr, count, 1)
            _add(device, block.ptr, address, count, 2)
            hip.synchronize()
            _expect("pinned memory after the stream is complete", pinned, values + np.uint32(turn + 3))
    return ""


def _stream_order(device: int) -> str:
    count, steps = 1 << 16, 8
    values = np.arange(count, dtype=np.uint32)
    first, second = (hip.allocate(values.nbytes, device, 0) for _ in "ab")
    with staging.acquired(device, values.nbytes, 0) as buffer:
        pinned = buffer.array[: values.nbytes].view(np.uint32)
        pinned[:] = values
        hip.clear(second.ptr, values.nbytes, 0)
        hip.copy("HostToDevice", first.ptr, buffer.ptr, values.nbytes, 0)
        for _ in range(steps):
            _add(device, first.ptr, second.ptr, count, 1)
            hip.copy("DeviceToDevice", first.ptr, second.ptr, values.nbytes, 0)
        hip.copy("DeviceToHost", buffer.ptr, first.ptr, values.nbytes, 0)
        hip.synchronize()
        _expect("one stream", pinned, values + np.uint32(steps))
        streams = [hip.acquire_stream(device) for _ in "ab"]
        for step in range(steps):
            stream, other = streams[step % 2].ptr, streams[1 - step % 2].ptr
            hip.wait_for(stream, other)
            _add(device, first.ptr, first.ptr, count, 1, stream)
        hip.copy("DeviceToHost", buffer.ptr, first.ptr, values.nbytes, streams[(steps - 1) % 2].ptr)
        hip.synchronize(streams[(steps - 1) % 2].ptr)
        _expect("two streams that wait for each other", pinned, values + np.uint32(2 * steps))
    return ""


def _peer_access(device: int) -> str:
    devices = hip.runtime().devices
    if devices < 2:
        return "not tried: there is one device"
    count = 1 << 16
    for peer in range(devices):
        if peer == device:
            continue
        if not (hip.peer_access(device, peer) and hip.peer_access(peer, device)):
            return f"devices {device} and {peer} have no access to each other: copies go through the host"
        values = np.arange(count, dtype=np.uint32) + np.uint32(peer)
        here, there = hip.allocate(values.nbytes, device, 0), hip.allocate(values.nbytes, peer, 0)
        found = np.zeros_like(values)
        with hip.on_device(device):
            hip.copy("HostToDevice", here.ptr, values.ctypes.data, values.nbytes, 0)
        with hip.on_device(peer):
            hip.clear(there.ptr, values.nbytes, 0)
            hip.synchronize()
        staging.copy_between_devices(there.ptr, peer, 0, here.ptr, device, 0, values.nbytes)
        with hip.on_device(peer):
            hip.copy("DeviceToHost", found.ctypes.data, there.ptr, values.nbytes, 0)
            hip.synchronize()
        _expect(f"a copy from device {device} to {peer}", found, values)
    return ""


SPECIAL: dict[str, Callable[[int], str]] = {
    "mfma_sum_order": _sum_order,
    "arguments": _arguments,
    "pinned_flags": _pinned_flags,
    "stream_order": _stream_order,
    "peer_access": _peer_access,
}


def names_of(kernels: Collection[str]) -> list[str]:
    """The primitives that exist on an architecture with these kernels."""
    special = {"mfma_sum_order": "mfma_bf16", "arguments": "arguments"}
    return [
        name
        for name in PRIMITIVES
        if _cases(name, kernels)
        or (name in SPECIAL and PREFIX + special.get(name, PORTABLE_KERNEL) in kernels)
    ]


def _cases(name: str, kernels: Collection[str]) -> list[Case]:
    """The cases of a primitive for which there are kernels."""
    made = CASES[name]() if name in CASES else []
    return [case for case in made if f"{PREFIX}{case.kernel or name}" in kernels]


def try_primitive(name: str, device: int) -> str:
    """Return a remark, or raise `WrongError` or the error of the runtime."""
    if name in SPECIAL:
        return SPECIAL[name](device)
    for case in _cases(name, code_object(hip.arch(device)).kernels):
        kernel = case.kernel or name
        _compare(_run(device, kernel, case), case, kernel)
    return ""


# ---- processes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """The result of one primitive: `wrong` is what was expected and what came, empty if it is right."""

    name: str
    wrong: str = ""
    remark: str = ""


class _Child:
    """A forked process that calls a function and writes what it returns as JSON."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._output, self._errors = (os.memfd_create(name) for name in ("output", "errors"))
        self._end = time.monotonic() + SECONDS
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._call(function)

    def _call(self, function: Callable[[], Any]) -> None:
        os.dup2(self._errors, 2)
        code = 1
        try:
            os.write(self._output, json.dumps(function()).encode())
            code = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def result(self) -> tuple[bool, Any] | None:
        """None while it runs; then whether it ended by itself, and what it returned, or why it did not."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0 and time.monotonic() < self._end:
            return None
        if pid == 0:
            os.kill(self._pid, signal.SIGKILL)  # which may not end one that waits for a GPU
        output, errors = _content(self._output), _content(self._errors)
        if pid == 0:
            return False, f"no answer within {SECONDS:g} s"
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return True, json.loads(output)
        ended = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with {code}"
        lines = errors.decode(errors="replace").strip().splitlines()
        return False, f"its process ended {ended}: {lines[-1] if lines else 'no message'}"


def _content(file: int) -> bytes:
    """All of a file, which is closed then."""
    with open(file, "rb") as f:
        f.seek(0)
        return f.read()


def _in_child(name: str, device: int) -> dict[str, str]:
    try:
        return {"remark": try_primitive(name, device)}
    except WrongError as error:
        return {"wrong": str(error)}
    except HipError as error:
        return {"wrong": " ".join(str(error).split())}


def _describe(device: int) -> dict[str, Any]:
    built = code_object(hip.arch(device))
    return {
        "summary": info().summary,
        "emulated": hip.runtime().kind == "emulator",
        "arch": built.arch,
        "primitives": names_of(built.kernels),
        "sha256": built.sha256,
    }


def run_all(
    names: Sequence[str], device: int, report: Callable[[Verdict], None], jobs: int | None = None
) -> list[Verdict]:
    """Try primitives, `jobs` at a time, each in a forked process; report each in order."""
    jobs = jobs or len(os.sched_getaffinity(0))
    waiting, running = list(names), dict[str, _Child]()
    found: dict[str, Verdict] = {}
    reported = 0
    while reported < len(names):
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            running[name] = _Child(partial(_in_child, name, device))
        for name, child in list(running.items()):
            result = child.result()
            if result is not None:
                ended, value = result
                found[name] = Verdict(name, **value) if ended else Verdict(name, wrong=str(value))
                del running[name]
        while reported < len(names) and names[reported] in found:
            report(found[names[reported]])
            reported += 1
        time.sleep(0.002)
    return [found[name] for name in names]


def selftest(names: Sequence[str] = (), device: int = 0) -> int:
    """Try primitives of a device, print and record the verdicts; return 0 if none failed.

    Those whose name contains one of `names`; by default all.
    """
    if loader.opened() is not None:
        raise RuntimeNotFoundError("this process has opened a device already; use another process")
    if fault := record.unwritable():
        print(f"error: {fault}", file=sys.stderr)
        return 1
    described = _wait(_Child(lambda: _describe(device)))
    print(described["summary"])
    arch, present = described["arch"], described["primitives"]
    if unknown := [name for name in names if not any(name in known for known in PRIMITIVES)]:
        print(f"error: no primitive {', '.join(unknown)}; there are {', '.join(PRIMITIVES)}", file=sys.stderr)
        return 2
    wanted = [name for name in PRIMITIVES if not names or any(part in name for part in names)]
    tried = [name for name in wanted if name in present]
    width = max(map(len, present))

    def report(verdict: Verdict) -> None:
        primitive = PRIMITIVES[verdict.name]
        line = f"{'FAIL' if verdict.wrong else 'ok  '}  {verdict.name:{width}}  {primitive.assumed}"
        print(line, *_details(verdict, primitive, arch), sep="\n      ", flush=True)

    jobs = None if described["emulated"] else 1  # a GPU that is reset ends all processes that use it
    failures = [v.name for v in run_all(tried, device, report, jobs) if v.wrong]
    where = _wait(_Child(lambda: _record(device, described["sha256"], tried, failures)))
    if failures:
        print(f"primitives: {len(failures)} of {len(tried)} failed: {', '.join(failures)}")
        print(f"what rests on them is refused on this device from now on, by {where}")
        return 1
    absent = [name for name in wanted if name not in present]
    rest = f"; {len(absent)} others are about what {arch} does not have" if absent else ""
    print(f"primitives: {len(tried)} right{rest}")
    return 0


def _details(verdict: Verdict, primitive: Primitive, arch: str) -> list[str]:
    if not verdict.wrong:
        return [verdict.remark] if verdict.remark else []
    return [verdict.wrong, *resting(primitive, arch)]


# The functions that launch kernels of an operation: the first entry that its name begins with.
_FUNCTIONS = {
    "gemm_float_scale": "matmul",
    "mx_gemm_scale": "matmul",
    "mx_group_scale": "grouped_wgrad",
    "gemm": "matmul, linear, linear_backward",
    "plain": "matmul, linear, linear_backward",
    "split_reduce": "matmul, linear, linear_backward",
    "grouped_matmul": "grouped_matmul, grouped_linear",
    "grouped_wgrad": "grouped_wgrad, grouped_linear_backward",
    "amax": "quantize_fp8",
    "sum_rows": "linear_backward",
    "sum_groups": "grouped_linear_backward",
    "activation_gradient": "linear_backward",
    "elementwise": "DeviceArray.astype, +, *",
    "copy": "DeviceArray.copy",
    **{name: name for name in ("quantize_fp8", "quantize_mxfp8", "quantize_mxfp6", "quantize_mxfp4")},
    **{name: name for name in ("pack_mx_scales", "dequantize", "rms_norm", "softmax")},
}
_SHOWN_PAIRS = 8  # of formats, by name


def resting(primitive: Primitive, arch: str) -> list[str]:
    """What rests on a primitive: kernels by operation, layouts and formats, and functions."""
    built = code_object(arch).kernels.values()
    kernels = [k for k in built if primitive.rests(k)]
    every, formats = _formats(built), _formats(kernels)
    groups: dict[tuple[str, str], list[str]] = {}
    for (operation, layout), pairs in formats.items():
        names = ", ".join(pairs) if len(pairs) <= _SHOWN_PAIRS else f"{len(pairs)} pairs of formats"
        shown = "" if pairs == every[operation, layout] else f" of {names}"
        groups.setdefault((operation, shown), []).append(layout)
    named = [" ".join(filter(None, (op, *layouts))) + pairs for (op, pairs), layouts in groups.items()]
    functions = dict.fromkeys(
        next(text for begin, text in _FUNCTIONS.items() if operation.startswith(begin))
        for operation, _ in formats
    )
    if primitive.functions:
        functions[primitive.functions] = None
    lines = [f"{len(kernels)} kernels rest on it: {'; '.join(named)}"] if kernels else []
    if primitive.quantized:
        lines.append(f"and products with out_format= {' or '.join(primitive.quantized)}")
    if functions:
        unique = dict.fromkeys(name for text in functions for name in text.split(", "))
        lines.append(f"functions: {', '.join(unique)}")
    return lines or ["no kernel rests on it"]


def _formats(kernels: Iterable[Kernel]) -> dict[tuple[str, str], list[str]]:
    """The pairs of formats by operation and layout; none for kernels that are not for products."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for k in kernels:
        pairs = found.setdefault((k.op.removeprefix("scaled_"), k.layout), {})
        if k.a:
            pairs[k.a if k.a == k.b else f"{k.a} by {k.b}"] = None
    return {key: list(pairs) for key, pairs in found.items()}


def _wait(child: _Child) -> Any:
    while (result := child.result()) is None:
        time.sleep(0.002)
    ended, value = result
    if not ended:
        raise RuntimeNotFoundError(str(value))
    return value


def _record(device: int, sha256: str, tried: Sequence[str], failures: Sequence[str]) -> str:
    """Record the failures, with earlier ones of primitives that were not tried now."""

    def change(known: dict[str, Any]) -> dict[str, Any]:
        earlier = known["failed"] if known.get("kernels") == sha256 else []
        failed = [*(name for name in earlier if name not in tried), *failures]
        return {"kernels": sha256, "failed": failed} if failed else {}

    return str(record.update(record.PRIMITIVES, device, change) or "")
