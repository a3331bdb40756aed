"""Loads and runs damaged code objects: each must end with a result or an error, never with the process.

python tests/emulator/fuzz_code_objects.py --count 1000000 --jobs 16

It needs the emulator and the code object that is damaged (--image), which is compiled if it is missing. Case
n is the same on every machine; --first starts at another one. A case that ends its process, or takes more
than a minute, is printed, and the exit code is 1. After each 100 cases the undamaged code object must run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "build/fuzz/kernels.co"
LIBRARY = ROOT / "hipgemm/_emulator/libamdhip64.so"
KERNELS = {b"globals": 12, b"mixed": 64, b"shape": 8}  # bytes of arguments
NAMES = {2: "refused: out of memory", 200: "refused: invalid image", 209: "refused: other architecture"}
NAMES |= {302: "refused: undefined symbol", 700: "refused: illegal address"}
EXTREMES = [0, 1, 0x7F, 0x80, 0xFF, 2**16 - 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]
SLOW = 60.0
BATCH = 100  # cases between two counts that a process reports


def segment(image: bytes, kind: int) -> tuple[int, int]:
    """First byte and end of the largest segment of a type in the file."""
    start, count = struct.unpack_from("<Q", image, 32)[0], struct.unpack_from("<H", image, 56)[0]
    headers = [struct.unpack_from("<IIQQQQQQ", image, start + 56 * i) for i in range(count)]
    found = [(h[2], h[2] + h[5]) for h in headers if h[0] == kind]
    return max(found, key=lambda r: r[1] - r[0])


def damaged(image: bytes, number: int) -> bytes:
    """Case `number`: one to four faults of one kind, in one part of the file."""
    rng = random.Random(number)
    data = bytearray(image)
    parts = [(0, len(image)), (0, 700), segment(image, 4), segment(image, 1)]
    kind = rng.randrange(6)
    for _ in range(rng.randrange(1, 5)):
        begin, end = rng.choice(parts)
        end = min(end, len(data))
        if begin >= end:
            continue
        at = rng.randrange(begin, end)
        match kind:
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:  # a dword of code, or of anything
                data[at & ~3 : (at & ~3) + 4] = rng.randbytes(4)
            case 3:
                size = rng.choice((2, 4, 8))
                value = rng.choice(EXTREMES) & (1 << 8 * size) - 1
                data[at : at + size] = value.to_bytes(size, "little")
            case 4:  # one range over another
                size, source = rng.randrange(1, 64), rng.randrange(len(data))
                data[at : at + size] = data[source : source + size]
            case _:
                if rng.random() < 0.5:
                    del data[at:]
                else:
                    del data[at : at + rng.randrange(1, 64)]
    return bytes(data)


class Machine:
    """The emulator in this process."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(str(LIBRARY))
        self.memory = ctypes.c_void_p()
        assert self.lib.hipMalloc(ctypes.byref(self.memory), ctypes.c_size_t(4096)) == 0
        self.libc = ctypes.CDLL(None)
        self.libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.area = mmap.mmap(-1, 1 << 20)
        self.end = ctypes.addressof(ctypes.c_char.from_buffer(self.area)) + len(self.area) - mmap.PAGESIZE
        assert self.libc.mprotect(self.end, mmap.PAGESIZE, 0) == 0

    def run(self, image: bytes) -> str:
        """Load an image that ends before a page that cannot be read, and run its kernels."""
        ctypes.memmove(self.end - len(image), image, len(image))
        module = ctypes.c_void_p()
        code = self.lib.hipModuleLoadData(ctypes.byref(module), ctypes.c_void_p(self.end - len(image)))
        if code:
            return NAMES.get(code, f"refused: error {code}")
        worst = "ran"
        for name, bytes_ in KERNELS.items():
            function = ctypes.c_void_p()
            if self.lib.hipModuleGetFunction(ctypes.byref(function), module, name):
                continue
            address = self.memory.value or 0
            block = (ctypes.c_uint64 * 16)(address, 1 if name == b"globals" else address, *[address] * 14)
            size = ctypes.c_size_t(bytes_)
            extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(block), 2, ctypes.addressof(size), 3)
            stream = ctypes.c_void_p()
            launched = self.lib.hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, stream, None, extra)
            if self.lib.hipDeviceSynchronize() or launched:
                worst = "loaded, with an error of a kernel"
        assert self.lib.hipModuleUnload(module) == 0
        return worst


def work(first: int, end: int, image: bytes, place: Path) -> None:
    """Run the cases, in a process of its own; `place` says at which one it is."""
    with place.open("r+b") as file, mmap.mmap(file.fileno(), 8) as at:
        machine, counts = Machine(), Counter[str]()
        for number in range(first, end):
            at[:] = number.to_bytes(8, "little")
            counts[machine.run(damaged(image, number))] += 1
            if (number + 1 - first) % BATCH == 0 or number + 1 == end:
                assert machine.run(image) == "ran"
                print(json.dumps(counts), flush=True)
                counts.clear()


class Worker:
    """A share of the cases, in one process after another if cases end them."""

    def __init__(self, number: int, first: int, end: int, args: argparse.Namespace, folder: Path) -> None:
        self.first, self.end, self.args = first, end, args
        self.place, self.log = folder / f"place{number}", folder / f"log{number}"
        self.place.write_bytes(first.to_bytes(8, "little"))
        self.log.write_bytes(b"")
        self.lost: list[tuple[int, str]] = []
        self.start()

    def start(self) -> None:
        command = [sys.executable, __file__, "--image", str(self.args.image), "--work", str(self.place)]
        command += ["--first", str(self.first), "--count", str(self.end - self.first)]
        environment = os.environ | {"HIPGEMM_EMULATOR_BUDGET": "100000", "HIPGEMM_EMULATOR_THREADS": "1"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.DEVNULL)
        self.seen = (-1, time.monotonic())

    def busy(self) -> bool:
        """Whether cases are left; goes on after the one that ended the process."""
        now = int.from_bytes(self.place.read_bytes(), "little")
        if now != self.seen[0]:
            self.seen = (now, time.monotonic())
        code = self.process.poll()
        if code is None and time.monotonic() - self.seen[1] < SLOW:
            return True
        if code == 0:
            return False
        how = f"process ended with {code}" if code is not None else f"more than {SLOW:.0f} s"
        if code is None:
            self.process.kill()
            self.process.wait()
        self.lost.append((now, how))
        self.first = now + 1
        if self.first >= self.end or len(self.lost) > 20:
            return False
        self.start()
        return True

    def counts(self) -> Counter[str]:
        found = Counter[str]()
        for line in self.log.read_text().splitlines():
            found.update(json.loads(line))
        return found


def compiled(path: Path) -> None:
    """Compile the code object that is damaged."""
    from hipapi import SOURCE, compile_hip

    path.parent.mkdir(parents=True, exist_ok=True)
    compile_hip(SOURCE, path)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20000, help="how many cases")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--first", type=int, default=0, help="the first case")
    parser.add_argument("--image", type=Path, default=IMAGE, help="the code object")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.first, args.first + args.count, args.image.read_bytes(), args.work)
        return 0
    if not args.image.exists():
        compiled(args.image)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        edges = [args.first + args.count * i // args.jobs for i in range(args.jobs + 1)]
        workers = [
            Worker(i, edges[i], edges[i + 1], args, Path(folder))
            for i in range(args.jobs)
            if edges[i] < edges[i + 1]
        ]
        shown = begin
        running = workers
        while running := [worker for worker in running if worker.busy()]:
            time.sleep(0.05)
            if time.monotonic() - shown > 30:
                shown = time.monotonic()
                done = sum(sum(worker.counts().values()) for worker in workers)
                print(f"{done:,} of {args.count:,} cases, {done / (shown - begin):,.0f} a second", flush=True)
        counts = sum((worker.counts() for worker in workers), Counter[str]())
        lost = [found for worker in workers for found in worker.lost]
    seconds = time.monotonic() - begin
    print(f"{args.count:,} damaged code objects in {seconds:.0f} s, {args.count / seconds:,.0f} a second")
    for outcome, number in counts.most_common():
        print(f"{number:12,} {outcome}")
    print(f"{len(lost):12,} ended the process")
    for number, how in lost:
        print(f"  case {number}: {how}; repeat it with --first {number} --count 1 --jobs 1")
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
