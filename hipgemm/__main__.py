"""The command line: ``python -m hipgemm info``, ``selftest``, ``bench`` and others."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hipgemm_benchmarks import cycle_report, cycles, tune
from hipgemm_benchmarks import model_check as choice_check
from hipgemm_benchmarks import tables as bench

from . import reference
from .array.device_array import asarray
from .config import config
from .errors import HipError, KernelNotFoundError, RuntimeNotFoundError, UnsupportedError
from .formats.elements import BF16, F16, F32, FORMATS, Format
from .formats.scaled import ScaledArray
from .inspect import explain, primitives, sanitize
from .inspect.explain import in_place
from .inspect.info import info, kind
from .inspect.usage import reset_usage, usage
from .kernels.manifest import GEMMS, MATRIX_ARCHS, Kernel, code_object
from .products.choose import PLAIN, k_strided
from .products.matmul import matmul
from .products.operation import OPERATIONS
from .runtime import hip as _hip
from .testing import assert_gemm_close, exact_grid, exact_scaled, random_matrix

SELFTEST_SHAPES = ((256, 256, 256), (257, 133, 201), (1, 1, 1), (3, 5, 0))  # whole tiles, and edges
# Exact or random inputs, and the result type. Shapes alternate between the two rows.
SELFTEST_INPUTS = (((True, F32), (False, BF16)), ((True, F16), (False, F32)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hipgemm", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--version", action="version", version=f"hipgemm {sys.modules['hipgemm'].__version__}"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="runtime, devices, kernels")
    test = commands.add_parser("selftest", help="a few products against float64, on the runtime in use")
    test.add_argument(
        "names", nargs="*", metavar="NAME", help="only kernels, or primitives, whose name contains this"
    )
    test.add_argument("-v", "--verbose", action="store_true", help="a line for each product and kernel")
    test.add_argument(
        "--primitives",
        action="store_true",
        help="instead: what kernels assume about the hardware, one by one, each in a process of its own",
    )
    query = commands.add_parser("can-use", help="which kernel would serve a call, or why none would")
    query.add_argument("op", choices=[*OPERATIONS])
    query.add_argument("a", help="shape of the first operand, such as 300x512; with T at the end: transposed")
    query.add_argument("b", help="shape of the second operand, such as 512x384T or 8x512x384")
    explain.add_options(query, "--input")
    why = commands.add_parser("explain", help="the kernels that could serve a product, and why one does")
    explain.add_arguments(why)
    replay = commands.add_parser("model", help="clocks of kernels' main loops, by the emulator's cycle model")
    cycle_report.add_arguments(replay)
    timing = commands.add_parser("bench", help="how long things take")
    bench.add_arguments(timing)
    tuning = commands.add_parser("tune", help="time kernels for products on a GPU, and use the fastest")
    tune.add_arguments(tuning)
    check = commands.add_parser(
        "sanitize", help="run a program that uses HIP on the emulator, under its checks"
    )
    sanitize.add_arguments(check)
    args = parser.parse_args(argv)
    try:
        if args.command == "info":
            found = info()
            print(found)
            return 1 if found.problem else 0
        if args.command == "selftest":
            if args.primitives:
                return primitives.selftest(args.names)
            return selftest(args.names, verbose=args.verbose)
        if args.command == "can-use":
            return _can_use(args)
        if args.command == "tune":
            return tune.run(args)
        if args.command == "sanitize":
            return sanitize.run(args)
        if args.command == "explain":
            return choice_check.run() if args.check else explain.run(args)
        if args.command == "model":
            return cycle_report.run(args)
        return bench.run(args)
    except (cycles.CycleModelError, RuntimeNotFoundError, KernelNotFoundError, HipError) as error:
        advice = "; or name an architecture: --arch gfx950" if args.command in ("can-use", "explain") else ""
        print(f"error: {error}{advice}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def selftest(names: Sequence[str] = (), *, verbose: bool = False) -> int:
    """Multiply a few shapes with every kernel, and check every element; return 0 if all are correct.

    Only with kernels whose name contains one of `names`, if there are any. Print failures, and one line per
    kind of kernel, or if `verbose` one line per product.
    """
    print(info())
    reset_usage()
    kernels = code_object(_hip.arch(_hip.current_device())).kernels.values()
    kinds: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        chosen = not names or any(name in kernel.name for name in names)
        if chosen and (kernel.op in GEMMS or kernel.op == PLAIN):
            kinds.setdefault(kind(kernel.name), []).append(kernel)
    if not kinds:
        print(f"error: no kernel for products here has a name with {' or '.join(names)}", file=sys.stderr)
        return 2
    rng = np.random.default_rng(0)
    failures = 0
    for name, members in kinds.items():
        tried = failed = 0
        cases: Cases = {}
        for kernel in members:
            for i, (m, n, k) in enumerate(SELFTEST_SHAPES):
                if kernel.layout not in ("nt", "") and i % 2 == 0:
                    continue  # the edge shapes are enough for other layouts
                faults = _try_shape(kernel, m, n, k, SELFTEST_INPUTS[i % 2], rng, cases)
                tried += 1
                failed += bool(faults)
                if verbose or faults:
                    line = f"{'FAIL' if faults else 'ok  '}  {kernel.name}  ({m}, {k}) @ ({k}, {n})"
                    print(line, *faults, sep="\n      ")
        failures += failed
        result = f"{failed} failed" if failed else "all right"
        print(f"{name:24} {len(members):3} kernels, {tried:3} products: {result}", flush=True)
    if verbose:
        print(usage())
    print(f"on {info().summary}")
    arch = _hip.arch(_hip.current_device())
    if failures:
        print(f"selftest: {failures} failures")
    elif arch not in MATRIX_ARCHS:
        able = " or ".join(MATRIX_ARCHS)
        print(
            f"selftest: no matrix kernels for {arch}, only for {able}; the plain kernel is correct, but slow"
        )
    else:
        print("selftest: all right")
    return 1 if failures else 0


# Arguments of products that kernels of a kind share, and results that were found right.
Cases = dict[tuple[object, ...], tuple[Any, Any, dict[str, Any], set[bytes]]]


def _try_shape(
    kernel: Kernel,
    m: int,
    n: int,
    k: int,
    inputs: Sequence[tuple[bool, Format]],
    rng: np.random.Generator,
    cases: Cases,
) -> list[str]:
    """Multiply with one kernel, with host and device operands; return the faults."""
    faults = []
    for exact, form in inputs:
        key = (kernel.layout, m, n, k, exact)
        if key not in cases:
            epilogue: dict[str, Any] = {
                "alpha": 0.5,
                "col_scale": np.exp2(rng.integers(-2, 3, n)).astype(np.float32),
                "bias": rng.integers(-4, 5, n).astype(np.float32),
            }
            a = _operand(kernel.a or "bf16", (m, k), rng, exact, k_strided(kernel, 0))
            w = _operand(kernel.b or "bf16", (n, k), rng, exact, k_strided(kernel, 1))
            cases[key] = a, w, epilogue, set()
        a, w, epilogue, right = cases[key]
        try:
            with config(kernel=kernel.name):
                out = np.full((m, n), np.nan, form.dtype)
                matmul(a, w.T, out, **epilogue)
                resident = matmul(asarray(a), asarray(w).T, dtype=form.dtype, **epilogue).get()
            if out.tobytes() not in right:
                assert_gemm_close(out, a, w.T, exact=exact, **epilogue)
                right.add(out.tobytes())
            if resident.tobytes() != out.tobytes():
                faults.append(f"{form.name}: device operands and host operands give different results")
        except (AssertionError, HipError, UnsupportedError) as error:
            faults.append(f"{form.name}, {'exact' if exact else 'random'}: {error}")
    return faults


def _operand(
    form: str, shape: tuple[int, int], rng: np.random.Generator, exact: bool, transposed: bool
) -> Any:
    """A matrix (rows, K) in a format, on the host; stored transposed if `transposed`."""
    if form in FORMATS:
        x = (exact_grid if exact else random_matrix)(shape, rng, dtype=FORMATS[form].dtype)
        return np.ascontiguousarray(x.T).T if transposed else x
    if form.endswith("_block"):
        form, block = form.removesuffix("_block"), (1, 128)
        if not exact:
            return reference.quantize_fp8(
                random_matrix(shape, rng, dtype=np.float32), format=form, block=block
            )
        powers = rng.integers(-2, 3, (shape[0], -(-shape[1] // block[1])))
        scale = np.exp2(powers.astype(np.float32))
        return ScaledArray(exact_scaled(shape, rng, form).data, scale, form, block=block)
    q = (
        exact_scaled(shape, rng, form)
        if exact
        else reference.quantize(random_matrix(shape, rng, dtype=np.float32), form)
    )
    if transposed:
        q = ScaledArray(np.ascontiguousarray(q.data.T).T, q.scale, form, axis=q.axis)
    return q


def _can_use(args: argparse.Namespace) -> int:
    shapes = []
    for text in (args.a, args.b):
        found = re.fullmatch(r"(\d+(?:x\d+)+)(T?)", text)
        if found is None:
            print(f"error: a shape looks like 300x512, 300x512T or 4x300x512; got {text!r}", file=sys.stderr)
            return 2
        shapes.append((tuple(map(int, found[1].split("x"))), bool(found[2])))
    a, b = shapes
    try:
        stages = explain.stages_of(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    answer = explain.ask_shapes(args.op, a, b, args.format, args.groups, args.dtype, args.arch, **stages)
    print(answer)
    costs = in_place(answer)
    if costs:
        print("  estimates of the cost model (not measured):")
    for cost in costs:
        print(f"    {cost}")
    return 0 if answer else 1


if __name__ == "__main__":
    sys.exit(main())
