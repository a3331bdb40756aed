"""The gradient before an activation, which kernels form as they read it."""

from __future__ import annotations

from dataclasses import dataclass

from ..array.device_array import DeviceArray
from ..formats.elements import F32, known_format
from ..kernels.launch import Value

CHUNK = 8  # elements that a thread reads at a time


@dataclass(frozen=True)
class Gradient:
    """`dy` times the derivative of an activation at `aux`, in float32: only `dy` and `aux` are in memory.

    `dy` (M, N), or (M, N/2) with a GLU, in any layout; `aux` (M, N), bfloat16 and contiguous. `factors` (N,):
    by which columns are multiplied next, float32 and contiguous.
    """

    dy: DeviceArray
    aux: DeviceArray
    activation: str | None
    glu: str | None
    factors: DeviceArray | None = None

    def fits(self) -> bool:
        """Whether kernels can read it: in whole chunks, of gates or of ups."""
        whole = self.aux.shape[1] % (2 * CHUNK if self.glu == "halves" else CHUNK) == 0
        dense = self.factors is None or self.factors.strides[0] == F32.itemsize
        return self.aux.size > 0 and whole and dense

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, N)."""
        return self.aux.shape

    @property
    def device(self) -> int:
        """The device that holds the arrays."""
        return self.dy.device

    @property
    def nbytes(self) -> int:
        """Bytes that are read."""
        return self.dy.nbytes + self.aux.nbytes

    def described(self) -> DeviceArray:
        """Describe it as an array: for shape, type and device. Its elements do not exist."""
        rows, columns = self.shape
        strides = columns * F32.itemsize, F32.itemsize
        return DeviceArray(self.dy._block, self.dy.ptr, (rows, columns), strides, F32.dtype)

    def begin_read(self, stream: int) -> tuple[int, ...]:
        """Order a kernel on a stream after the work that writes the arrays; return its addresses of two."""
        self.dy._block.begin_read(stream)
        self.aux._block.begin_read(stream)
        if self.factors is None:
            return self.aux.ptr, 0
        self.factors._block.begin_read(stream)
        return self.aux.ptr, self.factors.ptr

    @property
    def arguments(self) -> dict[str, Value]:
        """The other arguments of a kernel for what it reads."""
        return {
            "src_row_stride": self.dy.strides[0],
            "src_col_stride": self.dy.strides[1],
            "in_type": known_format(self.dy.dtype),
            "aux_pitch": self.aux.strides[0],
            "activation": self.activation or 0,
            "glu": self.glu or 0,
        }
