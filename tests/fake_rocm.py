"""A fake ROCm for a machine without a GPU: python tests/fake_rocm.py DIR [--devices N] [--arch NAME].

It makes a tree such as /opt/rocm, whose libamdhip64.so hipgemm takes for ROCm's:

    ROCM_PATH=DIR HIPGEMM_RUNTIME=rocm make test

The library is a small one, compiled here, in front of a copy of the emulator's. In the copy the functions by
which hipgemm knows its emulator have other names, so that no test finds them; so have the emulator's
variables, so that HIPGEMM_EMULATOR_... does nothing there. The small one says how many devices there are, of
which architecture, and which version of HIP it is; --hanging makes it a driver that never answers.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

EMULATOR = Path(__file__).resolve().parents[1] / "hipgemm" / "_emulator" / "libamdhip64.so"
# Each as long as the original name. No relocation refers to these functions by name.
RENAMED = {b"hipgemm_emulator_": b"standin_function_", b"HIPGEMM_EMULATOR_": b"FAKE_ROCM_DEVICE_"}

SOURCE = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Before the copy reads them, which it does at its first call.
__attribute__((constructor)) static void choose(void) {
  setenv("FAKE_ROCM_DEVICE_DEVICES", "@devices@", 1);
  setenv("FAKE_ROCM_DEVICE_ARCH", "@arch@", 1);
}

int hipRuntimeGetVersion(int* version) {
  *version = @version@;
  return 0;
}
int hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }

int hipGetDevicePropertiesR0600(char* properties, int device) {  // they begin with the name
  int (*real)(char*, int) = (int (*)(char*, int))dlsym(RTLD_NEXT, "hipGetDevicePropertiesR0600");
  int error = real(properties, device);
  if (!error) snprintf(properties, 256, "AMD Instinct (tests/fake_rocm.py)");
  return error;
}

#ifdef HANGING
int hipGetDeviceCount(int* count) {
  for (;;) sleep(1000);
}
#endif
"""


def make(
    root: Path,
    *,
    devices: int = 1,
    arch: str = "gfx950",
    version: str = "7.0",
    hanging: bool = False,
    development: bool = True,
) -> Path:
    """Make the tree; return the library.

    Parameters
    ----------
    root : Path
        Where.
    devices : int
        How many GPUs there are.
    arch : str
        Their architecture.
    version : str
        Of HIP; its first number is the library's, as in libamdhip64.so.7.
    hanging : bool
        Whether asking for devices never returns, as under a driver that hangs.
    development : bool
        Whether there is a libamdhip64.so, which only the development package has.
    """
    major, minor = map(int, version.split("."))
    folder = root / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    image = EMULATOR.read_bytes()
    for mark, other in RENAMED.items():
        assert len(mark) == len(other)
        assert mark in image, f"the emulator has no {mark.decode()}"
        image = image.replace(mark, other)
    # Neither file name nor soname may look like another libamdhip64.so to the loader and to hipgemm.
    machine = folder / "libfakerocm.so"
    machine.write_bytes(image.replace(b"\0libamdhip64.so\0", b"\0libfakerocm.so\0"))
    source = folder / "fake_rocm.c"
    values = {"devices": devices, "arch": arch, "version": 10_000_000 * major + 100_000 * minor}
    text = SOURCE
    for key, value in values.items():
        text = text.replace(f"@{key}@", str(value))
    source.write_text(text)
    library = folder / f"libamdhip64.so.{major}.{minor}.0"
    compiler = [shutil.which("cc")] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
    soname = f"libamdhip64.so.{major}"
    flags = ["-shared", "-fPIC", "-D_GNU_SOURCE", *(["-DHANGING"] if hanging else [])]
    link = [f"-Wl,-soname,{soname}", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*compiler, *flags, *link, "-o", library, source, machine, "-ldl"], check=True)
    for name in (soname, *(["libamdhip64.so"] if development else [])):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(library.name)
    return folder / ("libamdhip64.so" if development else soname)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a stand-in for ROCm.")
    parser.add_argument("root", type=Path, metavar="DIR")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="GPUs (default: 1)")
    parser.add_argument("--arch", default="gfx950", help="their architecture (default: gfx950)")
    parser.add_argument("--version", default="7.0", help="of HIP (default: 7.0)")
    parser.add_argument("--hanging", action="store_true", help="a driver that never answers")
    parser.add_argument(
        "--no-development", action="store_true", help="no libamdhip64.so, only libamdhip64.so.7"
    )
    args = parser.parse_args()
    made = make(
        args.root,
        devices=args.devices,
        arch=args.arch,
        version=args.version,
        hanging=args.hanging,
        development=not args.no_development,
    )
    print(made)


if __name__ == "__main__":
    main()
