"""Code objects: what loads, what is refused and how; no damaged one crashes the process."""

from __future__ import annotations

import ctypes
import mmap
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import asm
import pytest
from hipapi import (
    INVALID_IMAGE,
    NO_BINARY,
    SOURCE,
    Failed,
    Memory,
    address,
    check,
    compile_hip,
    fails,
    hip,
    launch,
    lib,
    report,
)

i32, size_t, void_p = ctypes.c_int32, ctypes.c_size_t, ctypes.c_void_p
ELF_HEADER = 64
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")


def load(image: bytes) -> Any:
    """hipModuleLoadData of an image that ends right before an unmapped page."""
    pages = (len(image) + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    area = mmap.mmap(-1, pages + mmap.PAGESIZE)
    view = (ctypes.c_char * len(area)).from_buffer(area)
    base = ctypes.addressof(view)
    libc = ctypes.CDLL(None)
    libc.mprotect.argtypes = [void_p, size_t, ctypes.c_int]
    at = base + pages - len(image)
    ctypes.memmove(at, image, len(image))
    assert libc.mprotect(base + pages, mmap.PAGESIZE, 0) == 0
    module = void_p()
    code = lib.hipModuleLoadData(ctypes.byref(module), void_p(at))
    assert libc.mprotect(base + pages, mmap.PAGESIZE, 3) == 0
    del view
    area.close()
    if code:
        raise Failed(code, report())
    return module


def refused(image: bytes, code: int, *parts: str) -> None:
    with fails(code, *parts):
        load(image)


def works(module: Any) -> bool:
    function = void_p()
    check(lib.hipModuleGetFunction(ctypes.byref(function), module, b"globals"))
    with Memory(8) as memory:
        launch(function.value, memory.address, i32(1))
        result = memory.get().tolist()
    check(lib.hipModuleUnload(module))
    return result == [30 + 20, 0]


def patched(image: bytes, offset: int, value: bytes) -> bytes:
    return image[:offset] + value + image[offset + len(value) :]


def program_headers(image: bytes) -> list[tuple[int, Any]]:
    (start,) = struct.unpack_from("<Q", image, 32)
    (count,) = struct.unpack_from("<H", image, 56)
    offsets = [start + i * PROGRAM_HEADER.size for i in range(count)]
    return [(offset, PROGRAM_HEADER.unpack_from(image, offset)) for offset in offsets]


@pytest.fixture(scope="session")
def image(code_object: Path) -> bytes:
    return code_object.read_bytes()


@pytest.fixture(scope="session")
def other_image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_hip(SOURCE, tmp_path_factory.mktemp("other") / "k.co", "gfx942").read_bytes()


def bundle(entries: dict[str, bytes]) -> bytes:
    header = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries))
    at = (len(header) + sum(24 + len(name) for name in entries) + 4095) // 4096 * 4096
    body = b""
    for name, content in entries.items():
        header += struct.pack("<QQQ", at + len(body), len(content), len(name)) + name.encode()
        body += content + b"\0" * (-len(content) % 4096)
    return header.ljust(at, b"\0") + body


# ---- what loads ------------------------------------------------------------------------------------


def test_data_and_file(image: bytes, code_object: Path) -> None:
    assert works(load(image))
    assert works(void_p(address(check(hip.hipModuleLoad(str(code_object).encode())))))
    assert works(void_p(address(check(hip.hipModuleLoadData(image)))))


@pytest.mark.parametrize("version", [4, 5, 6])
def test_code_object_versions(tmp_path: Path, version: int) -> None:
    path = compile_hip(SOURCE, tmp_path / "k.co", "gfx950", f"-mcode-object-version={version}")
    assert works(load(path.read_bytes()))


def test_without_section_table(image: bytes) -> None:
    stripped = patched(patched(image, 40, bytes(8)), 60, bytes(4))
    assert works(load(stripped))


def test_bundles(image: bytes, other_image: bytes) -> None:
    host, ours, other = (
        "host-x86_64-unknown-linux--",
        "hipv4-amdgcn-amd-amdhsa--gfx950",
        "hip-amdgcn-amd-amdhsa--gfx942",
    )
    whole = bundle({host: b"", other: other_image, ours: image})
    assert works(load(whole))
    assert works(load(bundle({ours + ":xnack+": other_image, ours + ":sramecc+:xnack-": image})))
    refused(bundle({host: b"", other: other_image}), NO_BINARY, "gfx942", "the device is gfx950")
    refused(bundle({ours + ":xnack+": image}), NO_BINARY, "gfx950:xnack+")
    refused(bundle({ours + ":sramecc+:xnack+": image}), NO_BINARY, "gfx950:sramecc+:xnack+")
    refused(whole[:-5000], INVALID_IMAGE)
    for length in (24, 31, 40, 60, 100):
        refused(whole[:length], INVALID_IMAGE)
    refused(patched(whole, 24, b"\xff" * 8), INVALID_IMAGE, "entries")


# ---- what is refused -------------------------------------------------------------------------------


def test_other_architectures(other_image: bytes, tmp_path: Path) -> None:
    refused(other_image, NO_BINARY, "the code object is for gfx942", "the device is gfx950")
    xnack = compile_hip(SOURCE, tmp_path / "k.co", "gfx950:xnack+").read_bytes()
    refused(xnack, NO_BINARY, "gfx950:xnack+", "gfx950:sramecc+:xnack-")
    same = compile_hip(SOURCE, tmp_path / "k.co", "gfx950:sramecc+:xnack-").read_bytes()
    assert works(load(same))


def test_the_device_may_be_another_one(run_python: Any, code_object: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_loader import *
refused(open({str(code_object)!r}, "rb").read(), NO_BINARY, "is for gfx950", "the device is gfx1201")
print("refused")
"""
    child = run_python(code, HIPGEMM_EMULATOR_ARCH="gfx1201:sramecc-:xnack-")
    assert child.stdout.strip() == "refused", child.stderr


@pytest.mark.parametrize(
    ("offset", "value", "parts"),
    [
        (0, b"X", ["neither an ELF file nor an offload bundle"]),
        (0, b"CCOB", ["neither an ELF"]),
        (4, b"\x01", ["64-bit"]),
        (5, b"\x02", ["little-endian"]),
        (7, b"\x00", ["OS ABI 0"]),
        (8, b"\x01", ["code object version 3", "4, 5 or 6"]),
        (16, b"\x01", ["shared object"]),
        (18, b"\x3e", ["machine 62"]),
        (32, b"\xff" * 8, ["program header"]),
        (40, b"\xff" * 7, ["section"]),
        (54, b"\x20", ["program header size"]),
        (56, b"\x00\x00", ["no segment"]),
    ],
)
def test_bad_headers(image: bytes, offset: int, value: bytes, parts: list[str]) -> None:
    refused(patched(image, offset, value), INVALID_IMAGE, *parts)


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        (8, 2**63, "leave the image"),
        (32, 2**40, "leave the image"),
        (40, 1, "larger"),
        (40, 2**50, "larger"),
        (16, 2**62, "larger"),
    ],
)
def test_bad_segments(image: bytes, field: int, value: int, part: str) -> None:
    offset = [at for at, header in program_headers(image) if header[0] == 1][-1]
    refused(patched(image, offset + field, struct.pack("<Q", value)), INVALID_IMAGE, part)


def test_undefined_symbols_are_named(tmp_path: Path) -> None:
    source = (
        SOURCE + 'extern DEVICE __attribute__((visibility("default"))) int elsewhere[4];'
        "KERNEL void use(int** to) { *to = &elsewhere[1]; }"
    )
    image = compile_hip(source, tmp_path / "k.co").read_bytes()
    refused(image, 302, "undefined symbol 'elsewhere'")


def test_metadata_that_is_no_metadata(image: bytes) -> None:
    (at,) = [header[2] for _, header in program_headers(image) if header[0] == 4]
    content = at + 12 + 8
    for value, part in [
        (b"\x91" * 30, "nested deeper"),
        (b"\xc1", "unknown type"),
        (b"\xdf\xff\xff\xff\xff", "more elements"),
    ]:
        refused(patched(image, content, value), INVALID_IMAGE, part)
    refused(patched(image, at + 12, b"NOTAMD"), INVALID_IMAGE, "no AMDGPU metadata")


def test_padding_listed_as_arguments() -> None:
    """As hand-written metadata does, even beyond the size stated; a longer block serves several kernels."""

    class Padded(asm.Snippet):
        def metadata(self, name: str) -> str:
            pad = f"      - {{.offset: {self.at}, .size: 4, .value_kind: by_value, .name: pad}}\n"
            return super().metadata(name) + pad

        at = 64

    class Far(Padded):
        at = 1 << 20

    def run(kernel: asm.Snippet, size: int) -> None:
        module, function = load(asm.assemble({"k": kernel})), void_p()
        check(lib.hipModuleGetFunction(ctypes.byref(function), module, b"k"))
        block, count = ctypes.create_string_buffer(size), size_t(size)
        extra = (void_p * 5)(1, ctypes.addressof(block), 2, ctypes.addressof(count), 3)
        check(lib.hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, None, None, extra))

    run(Padded(""), 64)
    run(Padded(""), 256)
    with fails(1, "must have 64 bytes", "got 56"):
        run(Padded(""), 56)
    with fails(1, "must have 64 bytes", "got 256"):
        run(asm.Snippet(""), 256)
    with fails(INVALID_IMAGE, "bytes of arguments"):
        load(asm.assemble({"k": Far("")}))


# ---- damage ----------------------------------------------------------------------------------------


def test_every_truncation_is_refused(image: bytes) -> None:
    """At any shorter length."""
    lengths = sorted({*range(0, 200, 7), *range(200, len(image), 61), len(image) - 1})
    for length in lengths:
        refused(image[:length], INVALID_IMAGE, "hipModuleLoadData: ")
    assert works(load(image))


def test_damaged_files_never_bring_the_process_down(code_object: Path) -> None:
    """`make fuzz` runs more of the same cases."""
    command = [sys.executable, Path(__file__).parent / "fuzz_code_objects.py", "--image", code_object]
    done = subprocess.run(
        [*command, "--count", "3000", "--jobs", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = re.findall(r"^ +([\d,]+) (.*)$", done.stdout, re.MULTILINE)
    counts = {outcome: int(number.replace(",", "")) for number, outcome in lines}
    assert sum(counts.values()) == 3000
    assert {"ran", "loaded, with an error of a kernel", "refused: invalid image"} <= counts.keys()
    assert counts["ended the process"] == 0
