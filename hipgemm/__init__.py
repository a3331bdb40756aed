"""Low-precision matrix products for AMD GPUs, from NumPy and without a framework.

>>> import ml_dtypes, numpy as np, hipgemm as hg
>>> x = np.eye(2, dtype=ml_dtypes.bfloat16)
>>> hg.matmul(x, x, dtype=np.float32)
array([[1., 0.],
       [0., 1.]], dtype=float32)
"""

from .array.device_array import DeviceArray, asarray, empty, zeros
from .config import config
from .distributed import sharding
from .distributed.sharding import ShardedArray, shard, sharded_matmul
from .errors import (
    HipError,
    InterchangeError,
    KernelNotFoundError,
    PlainKernelWarning,
    Reason,
    RuntimeFallbackWarning,
    RuntimeNotFoundError,
    UnsupportedError,
)
from .files.load import load
from .files.save import save
from .formats.elements import pack_fp4, pack_fp6, unpack_fp4, unpack_fp6
from .formats.scaled import ScaledArray
from .inspect.can_use import can_use
from .inspect.counters import EmulatorCounters, EmulatorLaunch, emulator_counters
from .inspect.info import Info, info
from .inspect.usage import Usage, reset_usage, usage
from .layers.linear import grouped_linear, grouped_linear_backward, linear, linear_backward
from .layers.normalize import rms_norm, softmax
from .layers.saved import GroupedSaved, LinearGrads, LinearSaved
from .products.choose import Support
from .products.grouped import grouped_matmul, grouped_wgrad
from .products.matmul import matmul
from .quantize.amax import AmaxState
from .quantize.quantizers import (
    dequantize,
    pack_mx_scales,
    quantize_both,
    quantize_fp8,
    quantize_mxfp4,
    quantize_mxfp6,
    quantize_mxfp8,
    transpose_quantize_mxfp6,
    transpose_quantize_mxfp8,
)
from .runtime.graph import Graph
from .runtime.memory import MemoryStats, limit_memory, memory_stats, trim
from .runtime.stream import Event, Stream, synchronize

__version__ = "0.1.0"

__all__ = [
    "AmaxState",
    "DeviceArray",
    "EmulatorCounters",
    "EmulatorLaunch",
    "Event",
    "Graph",
    "GroupedSaved",
    "HipError",
    "Info",
    "InterchangeError",
    "KernelNotFoundError",
    "LinearGrads",
    "LinearSaved",
    "MemoryStats",
    "PlainKernelWarning",
    "Reason",
    "RuntimeFallbackWarning",
    "RuntimeNotFoundError",
    "ScaledArray",
    "ShardedArray",
    "Stream",
    "Support",
    "UnsupportedError",
    "Usage",
    "asarray",
    "can_use",
    "config",
    "dequantize",
    "empty",
    "emulator_counters",
    "grouped_linear",
    "grouped_linear_backward",
    "grouped_matmul",
    "grouped_wgrad",
    "info",
    "limit_memory",
    "linear",
    "linear_backward",
    "load",
    "matmul",
    "memory_stats",
    "pack_fp4",
    "pack_fp6",
    "pack_mx_scales",
    "quantize_both",
    "quantize_fp8",
    "quantize_mxfp4",
    "quantize_mxfp6",
    "quantize_mxfp8",
    "reset_usage",
    "rms_norm",
    "save",
    "shard",
    "sharded_matmul",
    "sharding",
    "softmax",
    "synchronize",
    "transpose_quantize_mxfp6",
    "transpose_quantize_mxfp8",
    "trim",
    "unpack_fp4",
    "unpack_fp6",
    "usage",
    "zeros",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
