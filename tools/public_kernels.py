"""Public kernels and those of this repository, by the cycle model.

HIPGEMM_RUNTIME=emulator python tools/public_kernels.py --hipkittens CHECKOUT --aiter CHECKOUT

HipKittens' sources are compiled from a checkout, with the pinned compiler and hip_declarations.hpp; AMD's
binaries are those of a checkout of ROCm/aiter. Nothing of either is part of this repository. TFLOP/s are of
the whole product and a launch, at the clock that other kernels of such a busy share had, next to those
published. docs/change/model.md says what the model can predict.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

from toolchain import BuildError, Toolchain, choose, run

from hipgemm.formats.elements import named_format
from hipgemm.inspect.explain import ask, in_place
from hipgemm.products.chips import chip_of
from hipgemm.runtime import hip
from hipgemm_benchmarks import cycles
from hipgemm_benchmarks.cycle_kernels import TimedProduct, clock, model_product, time_product
from hipgemm_benchmarks.cycle_report import reversed_by

ARCH, SIZES = "gfx950", (1024, 2048, 4096, 8192)
HEADERS = Path(__file__).with_name("hip_declarations.hpp")
# What HipKittens includes of HIP and others, all of which HEADERS replaces.
INCLUDED = (
    *("hip/hip_runtime.h", "hip/amd_detail/amd_hip_runtime.h", "hip/amd_detail/hip_ldg.h", "hip/hip_fp8.h"),
    *("hip_bf16.h", "hip_fp16.h", "hip_fp8.h", "omp.h", "pyutils/pyutils.cuh", "profile_utils.cpp"),
)
FLAGS = (
    *("-x", "hip", f"--offload-arch={ARCH}", "--offload-device-only", "-nogpuinc", "-nogpulib"),
    *("-std=c++20", "-O3", "-w", "-ffast-math", "-DKITTENS_CDNA4", "-DHIP_ENABLE_WARP_SYNC_BUILTINS"),
)
# Loops are unrolled whole where the source asks for it, or not: the faster one counts.
UNROLLED = ((), ("-mllvm", "-pragma-unroll-threshold=2000"))


@dataclass(frozen=True)
class Public:
    """A kernel as it is launched for one size of M = N = K."""

    name: str
    format: str
    size: int
    tile: int  # of M and N
    threads: int
    lds: int  # bytes given at the launch
    codes: Sequence[bytes]  # code objects of one kernel each: the fastest counts
    arguments: Callable[[int, int, int, int], bytes]  # of the addresses of a, b, c and scales
    published: float | None = None  # TFLOP/s, on MI355X

    @property
    def operand_bytes(self) -> int:
        """Of a or b."""
        return self.size**2 * named_format(self.format).bits // 8

    @property
    def workgroups(self) -> int:
        """Of the launch."""
        return (self.size // self.tile) ** 2


# ---- HipKittens ----

# TFLOP/s on MI355X as published: by size for the best kernel, at 8192 by kernel.
HIPKITTENS = {
    ("16x32", 1024): 139.5, ("16x32", 2048): 665.1, ("16x32", 4096): 1412.9, ("16x32", 8192): 1580,
    ("32x16", 8192): 1291, ("8 waves", 8192): 3066,
    ("4 waves", 1024): 270, ("4 waves", 2048): 1054, ("4 waves", 4096): 2741, ("4 waves", 8192): 3303,
}  # fmt: skip


def hipkittens(checkout: Path, sizes: Sequence[int]) -> Iterator[Public]:
    """Kernels for bf16 with either matrix instruction, and for fp8 with 8 and with 4 waves."""
    tools, gemm = choose(), checkout / "kernels" / "gemm"
    with TemporaryDirectory() as folder:
        compiler = Compiler(tools, checkout, Path(folder))
        for n in sizes:
            tuned = checkout / "analysis" / "bf16_gemm" / "mi350x" / f"kernel_{n}.cpp"
            other = gemm / "bf16fp32" / "mi350x" / "256_256_64_32_with32x16.cpp"
            for what, file in (("16x32", tuned), ("32x16", other)):
                text = re.sub(r"#define ([MNK]) \d+", rf"#define \1 {n}", file.read_text())
                half = re.search(r"BLOCK_SIZE += 128", text)
                codes = compiler.codes(text, file.parent)
                tile, published = 128 if half else 256, HIPKITTENS.get((what, n))
                name = f"HipKittens {what}"
                yield Public(name, "bf16", n, tile, 512, 160_000, codes, _bf16_arguments(n), published)
            for waves, tile, suffix in ((8, 256, ""), (4, *FOUR_WAVES.get(n, (256, "")))):
                file = gemm / "fp8fp32" / f"FP8_{waves}wave" / f"{waves}_wave.cu"
                text = file.read_text().split("template <int M, int N, int K>\nvoid random_init")[0]
                types = ", ".join(
                    f"const kittens::gl<{t}, 1, 1, {n}, {n}>" for t in ("fp8e4m3",) * 2 + ("bf16",)
                )
                text += f"template __global__ void matmul_device{suffix}<{n}, {n}, {n}>({types});\n"
                codes, what = compiler.codes(text, file.parent), f"{waves} waves"
                published, threads = HIPKITTENS.get((what, n)), 64 * waves
                yield Public(
                    f"HipKittens {what}", "fp8_e4m3", n, tile, threads, 0, codes, _fp8_arguments, published
                )


# Orders of workgroups in bf16 at 8192: TFLOP/s by the rows of tiles that an XCD takes at once.
ORDERS = {0: 1017, 2: 1083, 4: 1109, 8: 1114, 32: 875}


def orders(checkout: Path) -> Iterator[Public]:
    """The kernel for bf16 with 32x32x16 in these orders."""
    file = checkout / "kernels" / "gemm" / "bf16fp32" / "mi350x" / "256_256_64_32_with32x16.cpp"
    with TemporaryDirectory() as folder:
        compiler, n = Compiler(choose(), checkout, Path(folder)), 8192
        for window, published in ORDERS.items():
            text = re.sub(r"#define ([MNK]) \d+", rf"#define \1 {n}", file.read_text())
            if window:
                text = text.replace("WGM = 8", f"WGM = {window}")
            else:
                text = text.replace("row = pid_m", "row = blockIdx.x / num_pid")
                text = text.replace("col = pid_n", "col = blockIdx.x % num_pid")
            codes = compiler.codes(text, file.parent)
            name = f"HipKittens 32x16, {window} rows"
            yield Public(name, "bf16", n, 256, 512, 160_000, codes, _bf16_arguments(n), published)


FOUR_WAVES = {1024: (64, "_1024"), 2048: (128, "_2048")}  # kernels of their own


class Compiler:
    """Compiles device code of a checkout of HipKittens."""

    def __init__(self, tools: Toolchain, checkout: Path, folder: Path) -> None:
        self._tools, self._checkout, self._folder = tools, checkout, folder
        for name in INCLUDED:
            file = folder / "headers" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f'#include "{HEADERS}"\n')
        (folder / "headers" / "here").mkdir()  # from where "../" leads to the headers

    def codes(self, text: str, home: Path) -> list[bytes]:
        """One code object for each way to compile it."""
        source, made, target = (self._folder / f"kernel.{end}" for end in ("hip", "o", "co"))
        source.write_text(text)
        found = []
        paths = (
            self._folder / "headers" / "here",
            self._folder / "headers",
            self._checkout / "include",
            home,
        )
        for unrolled in UNROLLED:
            assembly = source.with_suffix(".s")
            command = [*self._tools.clang, *FLAGS, *unrolled, *(f"-I{path}" for path in paths)]
            run([*command, "-S", str(source), "-o", str(assembly)])
            self._tools.assemble(assembly, ARCH, made)
            run([*self._tools.lld, "-shared", str(made), "-o", str(target)])
            found.append(target.read_bytes())
        return list(dict.fromkeys(found))


def _bf16_arguments(n: int) -> Callable[[int, int, int, int], bytes]:
    def arguments(a: int, b: int, c: int, _: int) -> bytes:
        return b"".join(struct.pack("<Q4QQ", p, 1, 1, n, n, 0) for p in (a, b, c)) + bytes(8)

    return arguments


def _fp8_arguments(a: int, b: int, c: int, _: int) -> bytes:
    return b"".join(struct.pack("<Q8x", p) for p in (a, b, c))


# ---- AMD ----


def aiter(checkout: Path, sizes: Sequence[int]) -> Iterator[Public]:
    """AMD's assembly kernels of ROCm/aiter."""
    folder = checkout / "hsa" / ARCH
    bf16 = folder / "bf16gemm" / "bf16gemm_bf16_tn_256x256.co"
    fp4 = folder / "f4gemm" / "f4gemm_bf16_per1x32Fp4_BpreShuffle_256x256.co"
    for n in sizes:
        for form, file in (("bf16", bf16), ("mxfp4_e2m1", fp4)):
            arguments = _aiter_arguments(n, scaled=form != "bf16")
            yield Public("AMD's of aiter", form, n, 256, 256, 0, [file.read_bytes()], arguments)


def _aiter_arguments(n: int, *, scaled: bool) -> Callable[[int, int, int, int], bytes]:
    def arguments(a: int, b: int, c: int, scales: int) -> bytes:
        pitch = n if scaled else 2 * n  # of a and b: elements of fp4, bytes of bf16
        d = n if scaled else 2 * n
        values: list[int | float] = [c, 0, a, b, 1.0, 0.0, d, 0, d, 0, pitch, 0, pitch, 0, n, n, n]
        values += [scales, scales, n // 32, 0, n // 32, 0, 0] if scaled else [1, 1, 0, 0, 0]
        return b"".join(struct.pack("<f12x" if isinstance(v, float) else "<QQ", *_slot(v)) for v in values)

    return arguments


def _slot(value: float) -> tuple[float, ...]:
    return (value,) if isinstance(value, float) else (value, 0)


# ---- the model ----


class Library:
    """Calls of HIP on the emulator."""

    def __init__(self) -> None:
        hip.current_device()
        self._library = cycles.library()
        self._library.hipgemm_emulator_last_report.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: object) -> None:
        """Call, and fail with the emulator's report."""
        if getattr(self._library, name)(*arguments):
            report = self._library.hipgemm_emulator_last_report() or b""
            raise BuildError(f"{name}: {report.decode()}")

    def time(self, public: Public, code: bytes) -> TimedProduct:
        """A product by one code object."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("hipModuleLoadData", ctypes.byref(module), code)
        name = entry_of(code)
        self.call("hipModuleGetFunction", ctypes.byref(function), module, name)
        n, each = public.size, public.operand_bytes
        memory = [ctypes.c_void_p() for _ in range(4)]
        for pointer, size in zip(memory, (each, each, 2 * n * n, n * n // 16), strict=True):
            self.call("hipMalloc", ctypes.byref(pointer), ctypes.c_size_t(size))
            self.call("hipMemset", pointer, 0, ctypes.c_size_t(size))
        block = public.arguments(*(pointer.value or 0 for pointer in memory))
        held, length = ctypes.create_string_buffer(block, len(block)), ctypes.c_size_t(len(block))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(held), 2, ctypes.addressof(length), 3)
        tiles = n // public.tile
        grid = (tiles, tiles, 1) if public.name.startswith("AMD") else (tiles * tiles, 1, 1)

        def launch() -> None:
            self.call(
                "hipModuleLaunchKernel", function, *grid, public.threads, 1, 1, public.lds, None, None, extra
            )

        found = time_product(launch, public.workgroups, 2 * each + 2 * n * n)
        for pointer in memory:
            self.call("hipFree", pointer)
        self.call("hipModuleUnload", module)
        return found


def entry_of(code: bytes) -> bytes:
    """The name of the only kernel of a code object."""
    found = re.search(rb"(\w+)\.kd\0", code)
    assert found
    return found[1]


def tflops(n: int, found: TimedProduct) -> tuple[float, float]:
    """With a launch, at the clock of such a loop; and that clock, in GHz."""
    ghz = clock(found.loop)
    return 2e-3 * n**3 * ghz / (found.clocks + chip_of(ARCH).rates.launch.value), ghz


def row(form: str, name: str, n: int, found: TimedProduct, published: float | None = None) -> str:
    """A line of the table."""
    busy = found.loop.busy
    rate, ghz = tflops(n, found)
    chip = 100 * n**3 / chip_of(ARCH).rates.matrix[named_format(form).bits].value / 256 / found.clocks
    line = f"{form:11} {name:38} {n:5} {found.clocks:11,.0f} {100 * busy:6.1f} {chip:6.1f}"
    line += f" {rate:8.0f} {0.9 * ghz:5.2f} to {1.1 * ghz:.2f}"
    return line + (f" {published:9.0f} {100 * (rate / published - 1):+5.0f} %" if published else "")


def ours(form: str, n: int) -> tuple[str, TimedProduct]:
    """The kernel of this repository that the cost model chooses."""
    cost = in_place(ask(n, n, n, form, arch=ARCH))[0]
    found = model_product(cost, ends=True)
    name = cost.kernel.name.removeprefix("gemm_") + (f", {cost.splits} parts of K" if cost.splits > 1 else "")
    ends = {end: 1 / speed for end, speed in found.at_ends.items()}
    return name, TimedProduct(found.loop, 1 / found.speed, ends)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="model public kernels and ours")
    parser.add_argument("--hipkittens", type=Path, help="a checkout of HazyResearch/HipKittens")
    parser.add_argument("--aiter", type=Path, help="a checkout of ROCm/aiter")
    parser.add_argument("--orders", action="store_true", help="only HipKittens' orders of workgroups")
    parser.add_argument("--size", type=int, action="append", choices=SIZES, help="M = N = K (default: all)")
    parser.add_argument("--format", action="append", help="only these (default: all)")
    args = parser.parse_args()
    forms = args.format or ["bf16", "fp8_e4m3", "mxfp8_e4m3", "mxfp4_e2m1", "mxfp6_e2m3"]
    sizes, library = args.size or SIZES, Library()
    print(
        f"{'':50} {'M=N=K':>5} {'clocks':>11} {'busy, percent':>13} {'TFLOP/s':>8} {'at GHz':>12} published"
    )
    print(f"{'':68} {'loop':>6} {'chip':>6}")
    public = [*(hipkittens(args.hipkittens, sizes) if args.hipkittens else ())]
    public += aiter(args.aiter, sizes) if args.aiter else ()
    if args.orders:
        forms, sizes, public = ["bf16"], [8192], [*orders(args.hipkittens)]
    undecided = []
    for form in forms:
        for n in sizes:
            ranked = {}
            for x in public:
                if (x.format, x.size) == (form, n):
                    found = min((library.time(x, code) for code in x.codes), key=lambda y: y.clocks)
                    print(row(form, x.name, n, found, x.published), flush=True)
                    ranked[x.name] = found.clocks, found.at_ends
            if not args.orders:
                name, mine = ours(form, n)
                print(row(form, name, n, mine), flush=True)
                ranked[name] = mine.clocks, mine.at_ends
            for one, other in combinations(ranked, 2):
                if ends := reversed_by(ranked[one], ranked[other]):
                    undecided.append(f"{form} {n}, {one} and {other}: {ends}")
    if undecided:
        print(
            "\nundecided, since the order depends on a figure that is not measured:", *undecided, sep="\n  "
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
