"""Invalid calls: the exact error, and everything works afterwards."""

import gc
import re
import subprocess
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.array import dlpack as _dlpack
from hipgemm.errors import message
from hipgemm.kernels.manifest import ARCHS, code_object
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close, random_matrix

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def free_bytes() -> int:
    """Free memory, with an empty pool."""
    gc.collect()
    _hip.runtime().pools[0].trim()
    return int(_hip.runtime().hip.hipMemGetInfo()[1])


@pytest.fixture(autouse=True)
def _still_works(rng):
    """After every test: the next product is correct and no memory was leaked."""
    a, w = random_matrix((20, 24), rng), random_matrix((30, 24), rng)
    for _ in range(2):  # the second call finds the first one's memory in the cache
        hg.matmul(a, w.T)
        hg.matmul(hg.asarray(a), hg.asarray(w).T).get()
    before = free_bytes()
    yield
    assert_gemm_close(hg.matmul(a, w.T), a, w.T)
    assert_gemm_close(hg.matmul(hg.asarray(a), hg.asarray(w).T).get(), a, w.T)
    assert free_bytes() == before


def ones(*shape, dtype=BF16):
    return np.ones(shape, dtype)


CALLS = {
    "K": ((ones(128, 4096), ones(4100, 256)), {}, ValueError),
    "dtype": ((ones(4, 8, dtype=F32), ones(8, 4)), {}, TypeError),
    "list": (([[1.0]], ones(1, 1)), {}, TypeError),
    "batch": ((ones(2, 4, 8), ones(3, 8, 4)), {}, ValueError),
    "ndim": ((ones(8), ones(8, 4)), {}, ValueError),
    "alpha": ((ones(4, 8), ones(8, 4)), {"alpha": 1e39}, ValueError),
}


@pytest.mark.parametrize(("args", "kwargs", "error"), CALLS.values(), ids=CALLS)
def test_messages_are_the_reasons_of_can_use(args, kwargs, error):
    placed = [list(args)]
    if all(isinstance(x, np.ndarray) for x in args):
        placed.append([hg.asarray(x) for x in args])
    for operands in placed:
        with pytest.raises(error) as caught:
            hg.matmul(*operands, **kwargs)
        assert type(caught.value) is error
        assert str(caught.value) == message("matmul", hg.can_use("matmul", *operands, **kwargs).reasons)


def test_residency():
    with pytest.raises(TypeError, match=r"a, b, out must be on the same device"):
        hg.matmul(hg.asarray(ones(4, 8)), hg.asarray(ones(8, 4)), ones(4, 4))


def test_overlap_on_the_device():
    x = hg.asarray(ones(16, 16))
    with pytest.raises(ValueError, match="out must not overlap a"):
        hg.matmul(x, hg.asarray(ones(16, 16)), x)
    with pytest.raises(ValueError, match="out must not overlap b"):
        hg.matmul(hg.asarray(ones(8, 16)), x, x[8:])
    scale = hg.asarray(ones(64, dtype=F32))
    out = hg.DeviceArray(scale._block, scale.ptr, (4, 4), (16, 4), F32)
    a = hg.asarray(ones(4, 8))
    for name in ("col_scale", "bias"):
        with pytest.raises(ValueError, match=f"out must not overlap {name}"):
            hg.matmul(a, a.T, out, **{name: scale[8:12]})


def test_overlap_is_found_again_when_the_shapes_are_known():
    # The second call finds its plan in the cache; it must still be checked.
    store, b = hg.zeros((64, 8), BF16), hg.asarray(ones(8, 8))
    hg.matmul(store[:32], b, store[32:])
    with pytest.raises(ValueError, match="out must not overlap a"):
        hg.matmul(store[:32], b, store[16:48])
    hg.matmul(store[32:], b, store[:32])


def test_interleaved_output_is_fine():
    store = hg.asarray(np.arange(256).reshape(16, 16).astype(BF16))
    eye = hg.asarray(np.eye(8).astype(BF16))
    hg.matmul(store[:, :8], eye, store[:, 8:])
    got = store.get()
    np.testing.assert_array_equal(got[:, 8:], got[:, :8])


def test_alpha_is_checked_when_the_shapes_are_known():
    a = hg.asarray(ones(4, 8))
    hg.matmul(a, a.T, alpha=2.0)
    with pytest.raises(ValueError, match="alpha must fit float32"):
        hg.matmul(a, a.T, alpha=1e39)
    assert np.isposinf(hg.matmul(a, a.T, alpha=float("inf")).get().astype(F32)).all()


def test_streams_that_do_not_exist():
    a = hg.asarray(ones(4, 8))
    for call in (
        lambda stream: hg.matmul(a, a.T, stream=stream),
        lambda stream: hg.matmul(ones(4, 8), ones(8, 4), stream=stream),
    ):
        with pytest.raises(ValueError, match=r"^matmul: stream must exist; got .* 0x3039;"):
            call(12345)
    with pytest.raises(ValueError, match=r"^asarray: stream must exist"):
        hg.asarray(ones(4, 8), stream=12345)
    np.testing.assert_array_equal(hg.matmul(a, a.T, stream=0).get(), np.full((4, 4), 8))


@pytest.mark.emulator("a destroyed stream may be used")
def test_a_stream_that_is_gone():
    a, out = hg.asarray(ones(4, 8)), hg.empty((4, 4), BF16)
    stream = int(_hip.call("hipStreamCreateWithFlags", 1))
    hg.matmul(a, a.T, out, stream=stream)
    _hip.synchronize(stream)
    _hip.call("hipStreamDestroy", stream)
    for call in (lambda: hg.matmul(a, a.T, out, stream=stream), lambda: hg.zeros(4, F32, stream=stream)):
        with pytest.raises(ValueError, match="stream must exist; got the unknown handle"):
            call()


def test_masked_arrays_are_refused():
    x = np.ma.array(ones(4, 8, dtype=F32))
    for call in (hg.asarray, hg.quantize_fp8, lambda x: hg.matmul(x, x.T)):
        with pytest.raises(
            TypeError, match=r"got MaskedArray; masks are not supported: use .filled\(value\)"
        ):
            call(x)
    with pytest.raises(TypeError, match=r"get: out must be a numpy.ndarray; got MaskedArray"):
        hg.zeros((4, 8), F32).get(out=x)
    codes, scale = ones(4, 8, dtype=ml_dtypes.float8_e4m3fn), ones(4, 1, dtype=F32)
    for data, scales, name in ((np.ma.array(codes), scale, "data"), (codes, np.ma.array(scale), "scale")):
        with pytest.raises(TypeError, match=f"ScaledArray: {name} must be .*; got MaskedArray"):
            hg.ScaledArray(data, scales, "fp8_e4m3")


def test_matrices_of_numpy_are_arrays(rng):
    a, w = random_matrix((5, 16), rng), random_matrix((7, 16), rng)
    x, out = np.asmatrix(a), np.asmatrix(np.zeros((5, 7), BF16))
    assert_gemm_close(hg.matmul(x, w.T), a, w.T)
    assert hg.matmul(x, w.T, out) is out
    assert_gemm_close(np.asarray(out), a, w.T)
    np.testing.assert_array_equal(hg.asarray(x).get(), a)


def test_unknown_types():
    for function, call in (
        ("asarray", lambda: hg.asarray(np.ones(2, F32), "zz")),
        ("asarray", lambda: hg.asarray(hg.zeros(2, F32), "zz")),
        ("zeros", lambda: hg.zeros(2, "zz")),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == f"{function}: dtype must be a dtype or the name of one; got 'zz'"


def test_unhashable_dtype():
    a = hg.asarray(ones(4, 8))
    with pytest.raises(TypeError, match="dtype must be bfloat16, float16 or float32"):
        hg.matmul(a, a.T, dtype={"no": "dtype"})


def test_refusals_are_counted():
    one = hg.asarray(ones(1, 1))
    tall = hg.DeviceArray(one._block, one.ptr, (2**31, 1), (0, 0), BF16)
    for _ in range(3):
        with pytest.raises(hg.UnsupportedError) as caught:
            hg.matmul(tall, hg.zeros((1, 2), BF16))
    codes = [reason.code for reason in caught.value.reasons]
    assert {"size", "grid"} <= set(codes)
    assert hg.usage().refused == {("matmul", code): 3 for code in codes}


def test_host_output_is_untouched_by_a_refused_call():
    out = np.full((4, 4), 7, BF16)
    with pytest.raises(ValueError, match="bias"):
        hg.matmul(ones(4, 8), ones(8, 4), out, bias=np.ones(3, F32))
    assert (out == 7).all()


@pytest.mark.emulator("the process survives a fault on the device, and gets its location")
def test_a_fault_on_the_device_is_reported_and_survived():
    """An operand that reaches beyond its allocation: the report names kernel and address."""
    small = hg.asarray(ones(64, 64))

    class Liar:
        def __dlpack_device__(self):
            return 10, 0

        def __dlpack__(self, *, stream=None):
            return _dlpack.export(small.ptr, 0, (2**20, 64), (128, 2), BF16, small)

    beyond = hg.asarray(Liar())
    kernel = hg.can_use("matmul", beyond, small.T, arch=_hip.arch(0)).kernel
    with pytest.raises(hg.HipError) as caught:
        hg.matmul(beyond, small.T).get()
    assert caught.value.code != 0
    assert caught.value.name.startswith("hipError")
    assert kernel in caught.value.report
    assert "0x" in caught.value.report
    assert kernel in str(caught.value)


# ---- missing kernels


other_architecture = pytest.mark.emulator("a device of another architecture")


def in_child(run_python: Run, code: str, **environment: str) -> str:
    done = run_python(
        "import ml_dtypes, numpy as np, hipgemm as hg\n"
        "from pathlib import Path\n"
        "from hipgemm.kernels import manifest\n"
        "x = np.ones((4, 8), ml_dtypes.bfloat16)\n" + code,
        **environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CATCH = """
try:
    hg.matmul(x, x.T)
except hg.KernelNotFoundError as error:
    print(error)
"""


@pytest.mark.packaging
@other_architecture
def test_unknown_architecture(run_python: Run) -> None:
    text = in_child(run_python, CATCH, HIPGEMM_EMULATOR_ARCH="gfx906")
    assert text == (
        f"matmul: no kernels for gfx906; architectures built: {', '.join(ARCHS)}; "
        f"hipgemm has kernels for {', '.join(ARCHS)} only"
    )


CALLERS = """
y, offsets = hg.zeros((32, 32), np.float32), np.array([0, 8, 32], np.int32)
z = y.get().astype(ml_dtypes.bfloat16)
for function, call in {
    "linear": lambda: hg.linear(y, y, recipe="fp8"),
    "grouped_linear": lambda: hg.grouped_linear(y, hg.zeros((2, 8, 32), np.float32), offsets, recipe="mxfp8"),
    "grouped_wgrad": lambda: hg.grouped_wgrad(z, z, offsets, recipe="mxfp8"),
    "sharded_matmul": lambda: hg.sharded_matmul(z, z, split="k", devices=[0, 0]),
}.items():
    try:
        call()
    except hg.KernelNotFoundError as error:
        assert str(error).startswith(f"{function}: no kernels for gfx906"), error
        print(".")
"""


@other_architecture
def test_functions_that_call_others_name_themselves(run_python: Run) -> None:
    assert in_child(run_python, CALLERS, HIPGEMM_EMULATOR_ARCH="gfx906").split() == ["."] * 4


@pytest.mark.parametrize(
    "function", ["linear", pytest.param("grouped_linear", marks=pytest.mark.matrix), "sharded_matmul"]
)
def test_sizes_that_other_functions_refuse(function):
    base = hg.zeros(64, BF16)
    x = hg.DeviceArray(base._block, base.ptr, (2**31, 64), (0, 0), BF16)
    w, offsets = hg.zeros((2, 64), BF16), np.array([0, 1, 2], np.int32)

    calls = {
        "linear": lambda: hg.linear(x, w),
        "grouped_linear": lambda: hg.grouped_linear(x, hg.zeros((2, 2, 64), BF16), offsets),
        "sharded_matmul": lambda: hg.sharded_matmul(
            hg.sharding.assemble([x], axis=0), hg.sharding.assemble([w.T], axis=None), split="m"
        ),
    }
    with pytest.raises(hg.UnsupportedError, match=f"^{function}: [23] faults:") as caught:
        calls[function]()
    assert caught.value.reasons


QUANTIZERS = """
for function in (hg.quantize_fp8, hg.quantize_mxfp8, hg.quantize_mxfp6, hg.quantize_mxfp4, hg.quantize_both):
    for y in (np.ones((32, 32), np.float32), hg.zeros((32, 32), np.float32)):
        try:
            function(y, *(["mxfp8_e4m3"] if function is hg.quantize_both else []))
        except hg.KernelNotFoundError as error:
            assert str(error).startswith(f"{function.__name__}: no kernels for gfx906"), error
            print(".")
"""


@other_architecture
def test_quantizers_name_themselves(run_python: Run) -> None:
    assert in_child(run_python, QUANTIZERS, HIPGEMM_EMULATOR_ARCH="gfx906").split() == ["."] * 10


def test_nothing_built(run_python: Run, tmp_path) -> None:
    text = in_child(run_python, f"manifest.KERNEL_DIR = Path({str(tmp_path)!r})\n" + CATCH)
    assert re.fullmatch(
        rf"matmul: no kernels for {_hip.arch(0)}; (architectures built|built for the bridge): none; "
        r"run: make (kernels(-all)?|bridge) \(in a source tree; .*\)",
        text,
    )


def copy_kernels(tmp_path):
    """Copy what was built; return the copy of the device's code object."""
    built = code_object(_hip.arch(0)).path
    for path in filter(lambda path: path.is_file(), built.parent.iterdir()):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path / built.name


def test_missing_code_object(run_python: Run, tmp_path) -> None:
    path = copy_kernels(tmp_path)
    path.unlink()
    text = in_child(run_python, f"manifest.KERNEL_DIR = Path({str(tmp_path)!r})\n" + CATCH)
    assert text.startswith("matmul: the code object ")
    assert f"{path.name} cannot be read (No such file or directory); run: make " in text


def test_damaged_code_object(run_python: Run, tmp_path) -> None:
    path = copy_kernels(tmp_path)
    image = bytearray(path.read_bytes())
    image[len(image) // 2] ^= 1
    path.write_bytes(image)
    text = in_child(run_python, f"manifest.KERNEL_DIR = Path({str(tmp_path)!r})\n" + CATCH)
    assert text.startswith("matmul: the code object ")
    assert f"{path.name} does not match the manifest; run: make " in text


def test_recovers_when_the_kernels_appear(run_python: Run, tmp_path) -> None:
    path = copy_kernels(tmp_path)
    hidden = path.rename(path.with_suffix(".hidden"))
    code = (
        f"manifest.KERNEL_DIR = Path({str(tmp_path)!r})\n{CATCH}\n"
        f"Path({str(hidden)!r}).rename({str(path)!r})\nprint(hg.matmul(x, x.T)[0, 0])"
    )
    assert in_child(run_python, code).splitlines()[-1] == "8"


def test_forced_kernel_that_is_not_there(run_python: Run, bf16_kernels: bool) -> None:
    code = "try:\n    hg.matmul(x, x.T)\nexcept ValueError as error:\n    print(error)"
    text = in_child(run_python, code, HIPGEMM_KERNEL="fastest")
    assert text.startswith(
        "matmul: HIPGEMM_KERNEL must be plain or a kernel for matmul; got fastest; those for "
    )
    assert ("gemm_bf16_nt_" in text) == bf16_kernels
