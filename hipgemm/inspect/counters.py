"""The emulator's counters: instructions, clocks of matrix pipes and LDS, bytes of memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, fields

from ..errors import RuntimeNotFoundError, requirement
from ..formats.checks import Checks
from ..runtime import hip as _hip


@dataclass(frozen=True)
class EmulatorCounters:
    """Sums over launches. All except `nanoseconds` are reproducible, on every CPU.

    The counters from `counted_launches` on depend on addresses. They cover only the launches that ran while
    addresses were counted. docs/trust/emulator.md, "Counters", defines them.

    Attributes
    ----------
    launches, workgroups, waves : int
        Numbers of launches, workgroups and waves.
    wave_instructions : int
        Executed instructions, counted per wave. By class they are `salu`, `valu`, `trans`
        (transcendental), `mfma` (matrix), `lds`, `vmem` (vector memory), `smem` (scalar memory), `branch`,
        `wait` (s_waitcnt) and `other`.
    barriers : int
        Of these, ``s_barrier``.
    matrix_clocks : int
        Busy clocks of the matrix pipes, summed over SIMDs.
    nanoseconds : int
        Host time of emulation.
    counted_launches : int
        Launches whose addresses were counted.
    lds_data_clocks, lds_conflict_clocks : int
        Busy clocks of the LDS data ports without bank conflicts, and the clocks that conflicts add.
    lds_read_bytes, lds_written_bytes, lds_dma_bytes : int
        Bytes that lanes read from and write to LDS, and that loads write to LDS directly (DMA).
    global_read_bytes, global_written_bytes, global_atomic_bytes : int
        Bytes of memory that lanes request.
    l2_read_requests, l2_written_requests, l2_atomic_requests : int
        128-byte cache lines that these touch, counted once per wave instruction.
    unique_read_bytes, unique_read_lines, unique_written_bytes, unique_written_lines : int
        Distinct bytes and 128-byte lines that a launch touches.
    scalar_bytes : int
        Bytes of scalar loads.
    scratch_bytes : int
        Bytes that lanes read and write in private memory.
    each : tuple of EmulatorLaunch
        The launches in the order of completion, at most the latest 1024.
    """

    launches: int = 0
    workgroups: int = 0
    waves: int = 0
    wave_instructions: int = 0
    salu: int = 0
    valu: int = 0
    trans: int = 0
    mfma: int = 0
    lds: int = 0
    vmem: int = 0
    smem: int = 0
    branch: int = 0
    wait: int = 0
    other: int = 0
    barriers: int = 0
    matrix_clocks: int = 0
    nanoseconds: int = 0
    counted_launches: int = 0
    lds_data_clocks: int = 0
    lds_conflict_clocks: int = 0
    lds_read_bytes: int = 0
    lds_written_bytes: int = 0
    lds_dma_bytes: int = 0
    global_read_bytes: int = 0
    global_written_bytes: int = 0
    global_atomic_bytes: int = 0
    l2_read_requests: int = 0
    l2_written_requests: int = 0
    l2_atomic_requests: int = 0
    unique_read_bytes: int = 0
    unique_read_lines: int = 0
    unique_written_bytes: int = 0
    unique_written_lines: int = 0
    scalar_bytes: int = 0
    scratch_bytes: int = 0
    each: tuple[EmulatorLaunch, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        found = [(name, getattr(self, name)) for name in _NAMES]
        return "\n".join(f"{name:20} {value:16,}" for name, value in found if value) or "nothing ran"


@dataclass(frozen=True)
class EmulatorLaunch:
    """The counters of one launch.

    Attributes
    ----------
    kernel : str
        Its name.
    workgroups, workgroup_size : tuple of int
        The grid in workgroups, and the workgroup in lanes, as x, y, z.
    vgprs, agprs, sgprs : int
        Registers as the compiler counts them: vector registers, the accumulation registers among them, and
        scalar registers.
    allocated_vgprs : int
        Vector registers that a wave occupies, of the 512 of a SIMD.
    lds_bytes : int
        LDS per workgroup.
    private_bytes : int
        Private memory per lane.
    counters : EmulatorCounters
        Its counters.
    """

    kernel: str
    workgroups: tuple[int, int, int]
    workgroup_size: tuple[int, int, int]
    vgprs: int
    agprs: int
    sgprs: int
    allocated_vgprs: int
    lds_bytes: int
    private_bytes: int
    counters: EmulatorCounters


_NAMES = tuple(field.name for field in fields(EmulatorCounters) if field.name != "each")
_RESOURCES = ("vgprs", "agprs", "sgprs", "allocated_vgprs", "lds_bytes", "private_bytes")  # of a launch
_MOST_KERNEL_NAME = 4096


def emulator_counters(*, reset: bool = False, addresses: bool | None = None) -> EmulatorCounters:
    """Wait for all work on the emulator, and return the counters since the start or the last reset.

    Parameters
    ----------
    reset : bool
        Set the counters to zero afterwards.
    addresses : bool, optional
        From now on, count (or do not count) what depends on addresses too: LDS clocks, bytes, requests.
        Launches then take several times as long. Default: no change; HIPGEMM_EMULATOR_COUNT=1 sets it at
        the start.

    Returns
    -------
    EmulatorCounters
        Totals, and each launch in `each`.

    Raises
    ------
    RuntimeNotFoundError
        If the runtime is not the emulator.

    Examples
    --------
    >>> import ml_dtypes, numpy as np, hipgemm as hg
    >>> x = np.ones((256, 256), ml_dtypes.bfloat16)
    >>> if hg.info().runtime == "emulator":
    ...     _ = hg.emulator_counters(reset=True, addresses=True)
    ...     _ = hg.matmul(x, x.T)
    ...     counted = hg.emulator_counters(addresses=False)
    ...     assert counted.mfma * 16 * 16 * 32 == 256**3
    ...     assert counted.unique_read_bytes == 2 * x.nbytes
    ...     assert counted.lds_conflict_clocks == 0
    """
    checks = Checks("emulator_counters")
    reset = checks.flag("reset", reset)
    if addresses is not None:
        addresses = checks.flag("addresses", addresses)
    checks.raise_all()
    rt = _hip.runtime()
    library = rt.emulator
    if library is None:
        text = requirement("the runtime must be the emulator", rt.kind, f"library {rt.library}")
        raise RuntimeNotFoundError(f"emulator_counters: {text}; set HIPGEMM_RUNTIME=emulator")
    for device in range(rt.devices):
        with _hip.on_device(device):
            _hip.block("hipDeviceSynchronize")
    found = _read(library)
    if reset:
        library.hipgemm_emulator_reset_counters()
    if addresses is not None:
        library.hipgemm_emulator_set_counting(int(addresses))
    return found


def _read(library: ctypes.CDLL) -> EmulatorCounters:
    library.hipgemm_emulator_counter_names.restype = ctypes.c_char_p
    library.hipgemm_emulator_launch_names.restype = ctypes.c_char_p
    names = (library.hipgemm_emulator_counter_names() or b"").decode().split()
    shape = (library.hipgemm_emulator_launch_names() or b"").decode().split()
    values = (ctypes.c_uint64 * (len(shape) + len(names)))()
    kernel = ctypes.create_string_buffer(_MOST_KERNEL_NAME)

    library.hipgemm_emulator_counters(values, len(names))
    totals = dict(zip(names, values, strict=False))
    launches = []
    for number in range(max(0, totals["launches"] - 1024), totals["launches"]):
        size = ctypes.c_size_t(len(kernel))
        if not library.hipgemm_emulator_launch(ctypes.c_uint64(number), kernel, size, values, len(values)):
            continue
        found = dict(zip(shape + names, values, strict=True))
        x, y, z = ((found["workgroups_" + axis], found["workgroup_size_" + axis]) for axis in ("x", "y", "z"))
        launches.append(
            EmulatorLaunch(
                kernel=kernel.value.decode(errors="replace"),
                workgroups=(x[0], y[0], z[0]),
                workgroup_size=(x[1], y[1], z[1]),
                counters=EmulatorCounters(**{name: found[name] for name in _NAMES}),
                **{name: found[name] for name in _RESOURCES},
            )
        )
    return EmulatorCounters(**{name: totals[name] for name in _NAMES}, each=tuple(launches))
