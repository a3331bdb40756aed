"""Checkpoints: a mapped file, or a folder or an index of several."""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import message, requirement, shown
from .header import LENGTH, Damaged, Entry, read_header, read_length

Array = npt.NDArray[Any]
_INDEX, _SUFFIX = ".safetensors.index.json", ".safetensors"
_CONFIG_LIMIT = 64 << 20  # bytes of an index or a config
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's; Python has the name since 3.13


class MappedFile:
    """A safetensors file in memory. Its arrays keep the memory, even if the file gets another name.

    Parameters
    ----------
    path : str
        The file.
    writeable : bool
        Whether arrays of it can be written to; the file does not change then.
    """

    def __init__(self, path: str, writeable: bool):
        self.path = path
        with _open(path) as file:
            size = os.fstat(file.fileno()).st_size
            try:
                length = read_length(file.read(LENGTH), size)
                self.entries, self.metadata = read_header(file.read(length), size - LENGTH - length)
            except Damaged as error:
                raise _damaged(path, error) from None
            flags, access = mmap.MAP_SHARED, mmap.PROT_READ
            if writeable:  # without reserving memory for copies of all pages
                flags, access = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            self._memory = mmap.mmap(file.fileno(), 0, flags=flags, prot=access)
        self._begin = LENGTH + length
        self._bytes = np.frombuffer(self._memory, np.uint8)

    def bytes_of(self, entry: Entry) -> Array:
        """The bytes of a tensor, without a copy."""
        return self._bytes[self._begin + entry.begin : self._begin + entry.end]

    def release(self, part: Array) -> None:
        """Let the pages of a part go. They are read again when they are used."""
        first = part.__array_interface__["data"][0] - self._bytes.__array_interface__["data"][0]
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        if part.nbytes:
            self._memory.madvise(mmap.MADV_DONTNEED, start, first + part.nbytes - start)


class Checkpoint:
    """The tensors of one file or several.

    Attributes
    ----------
    path : str
        As given.
    entries : dict of str to Entry
        All tensors, in the order of files and headers.
    files : list of MappedFile
        The files.
    """

    def __init__(self, path: str, writeable: bool):
        self.path = path
        self.files: list[MappedFile] = []
        self.entries: dict[str, Entry] = {}
        self._file_of: dict[str, MappedFile] = {}
        self._folder, names, expected = _file_names(path)
        for name in names:
            file = MappedFile(str(self._folder / name), writeable)
            self.files.append(file)
            for tensor, entry in file.entries.items():
                if tensor in self._file_of:
                    got = f"{shown(tensor)} in {self._file_of[tensor].path} and {file.path}"
                    raise _damaged(path, requirement("names of tensors in a checkpoint must differ", got))
                self.entries[tensor], self._file_of[tensor] = entry, file
        for tensor, name in expected.items():
            if tensor not in self._file_of or Path(self._file_of[tensor].path).name != name:
                required = f"the file {name} must hold tensor {shown(tensor)}, as the index says"
                raise _damaged(path, requirement(required, "a file without it"))

    def bytes_of(self, name: str) -> Array:
        """The bytes of a tensor, without a copy."""
        return self._file_of[name].bytes_of(self.entries[name])

    def size_of(self, name: str) -> int:
        """Bytes of a tensor."""
        return self.entries[name].end - self.entries[name].begin

    def release(self, name: str, part: Array) -> None:
        """Let the pages of a part of a tensor go."""
        self._file_of[name].release(part)

    @property
    def config(self) -> dict[str, Any]:
        """The contents of ``config.json`` next to the files; empty if there is none."""
        path = self._folder / "config.json"
        return _read_json(str(path)) if path.is_file() else {}

    def damaged(self, text: object) -> ValueError:
        """Make the exception for contents that are not as they must be."""
        return _damaged(self.path, text)


def _damaged(path: str, text: object) -> ValueError:
    return ValueError(message("load", [f"{path}: {text}"]))


def _open(path: str) -> Any:
    """Open a regular file; anything else might block."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise _damaged(path, requirement("path must be that of a file", "a device, a pipe or a socket"))
    return open(path, "rb")


def _file_names(path: str) -> tuple[Path, list[str], dict[str, str]]:
    """The folder, the names of the files in it, and the tensors that an index expects in each."""
    if path.endswith(_INDEX):
        return Path(path).parent, *_read_index(path)
    if not os.path.isdir(path):
        return Path(path).parent, [Path(path).name], {}
    folder = Path(path)
    indices = sorted(folder.glob(f"*{_INDEX}"))
    if len(indices) > 1:
        raise _damaged(path, requirement("a folder must have one index", ", ".join(x.name for x in indices)))
    if indices:
        return folder, *_read_index(str(indices[0]))
    names = sorted(file.name for file in folder.glob(f"*{_SUFFIX}"))
    if not names:
        raise FileNotFoundError(errno.ENOENT, f"no file with the suffix {_SUFFIX} in the folder", path)
    return folder, names, {}


def _read_index(path: str) -> tuple[list[str], dict[str, str]]:
    """Read which file has which tensor."""
    places = _read_json(path).get("weight_map")
    if isinstance(places, dict) and all(map(_is_file_name, places.values())):
        return sorted(set(places.values())), places
    required = "weight_map must have the name of a file in the same folder for each tensor"
    raise _damaged(path, requirement(required, shown(places)))


def _is_file_name(x: object) -> bool:
    return isinstance(x, str) and x == Path(x).name and x not in ("", "..") and "\0" not in x


def _read_json(path: str) -> dict[str, Any]:
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _CONFIG_LIMIT:
            raise _damaged(path, requirement(f"the file must have at most {_CONFIG_LIMIT} bytes", size))
        text = file.read(size)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, requirement("the file must be JSON", shown(error, str))) from None
    if not isinstance(found, dict):
        raise _damaged(path, requirement("the file must hold a JSON object", shown(found)))
    return found
