"""Every operation on arrays: a DeviceArray gives what NumPy gives, or raises."""

import copy
import math
import operator
import pickle
import warnings

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg

REFUSALS = (TypeError, ValueError, IndexError, AttributeError, BufferError)
BF16 = np.dtype(ml_dtypes.bfloat16)


def plain(x):
    """What can be compared of a value: shape, type and bytes of arrays, also inside of others."""
    if isinstance(x, hg.DeviceArray):
        x = x.get()
    if isinstance(x, (np.ndarray, np.generic)):
        return x.shape, x.dtype, x.tobytes()
    if isinstance(x, (list, tuple)) or type(x).__name__ in (
        "list_iterator",
        "generator",
        "reversed",
        "iterator",
    ):
        return [plain(y) for y in x]
    return x


def outcome(call, *args):
    """The value of a call, in a form that can be compared, or the exception."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return plain(call(*args))
    except Exception as error:
        return error


def check(name, call, x, y, *args, required=False):
    """Do the same to NumPy's array and to ours; `required`: ours must not refuse what NumPy gives."""
    expected, got = outcome(call, x, *args), outcome(call, y, *args)
    if isinstance(got, Exception):
        assert isinstance(got, REFUSALS) or type(got) is type(expected), f"{name}: {got!r}"
        assert not required or isinstance(expected, Exception), (
            f"{name}: NumPy gives {expected}, ours {got!r}"
        )
    elif isinstance(expected, Exception):
        pytest.fail(f"{name}: NumPy raises {expected!r}, ours gives {got}")
    else:
        assert got == expected, name


VIEWS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[..., ::-1] if x.ndim else x,
    "every other": lambda x: x[..., ::2] if x.ndim else x,
    "part": lambda x: x[1:] if x.ndim else x,
}
SHAPES = ((), (1,), (6,), (4, 6), (1, 1), (0,), (3, 0), (2, 3, 4))
DTYPES = (np.float32, BF16, np.int8, np.bool_)


@pytest.fixture(params=VIEWS)
def pairs(request):
    """The same arrays in NumPy and on the device."""
    made = []
    for shape in SHAPES:
        for dtype in DTYPES:
            x = np.asarray(np.arange(math.prod(shape)).reshape(shape) % 7 - 2).astype(dtype)
            view = VIEWS[request.param]
            made.append((f"{shape} {np.dtype(dtype)}", view(x), view(hg.asarray(x))))
    return made


# What the array API standard requires of an array, and what Python's operators can do.
UNARY = {
    **{
        f.__name__: f for f in (len, list, tuple, reversed, sum, min, max, sorted, any, all, bool, int, float)
    },
    **{f.__name__: f for f in (complex, round, abs, hex, math.trunc, math.floor, math.ceil, operator.index)},
    **{
        f.__name__: f
        for f in (operator.neg, operator.pos, operator.invert, operator.not_, operator.length_hint)
    },
    "first": lambda x: next(iter(x)),
    "unpacked": lambda x: [*x],
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickled": lambda x: pickle.loads(pickle.dumps(x)),
    "deleted": lambda x: operator.delitem(copy.deepcopy(x), 0),
    "set": lambda x: operator.setitem(copy.deepcopy(x), 0, 1),
    "format": lambda x: f"{x:.2f}",
    "to_device": lambda x: x.to_device("cpu"),
    "namespace": lambda x: x.__array_namespace__().__name__,
}
BINARY = [  # but for concat, which Python takes for +
    *("lt", "le", "eq", "ne", "ge", "gt", "contains", "iconcat"),
    *(
        f"{i}{name}"
        for i in ("", "i")
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift")
    ),
    *("and_", "or_", "xor", "iand", "ior", "ixor", "imatmul"),
]
REQUIRED = {"len", "list", "tuple", "reversed", "first", "unpacked", "deepcopy", "copy"}


def on_copy(x, f, other):
    return f(copy.deepcopy(x), other)


def swapped(x, f, other):
    return f(other, copy.deepcopy(x))


def twice(x, f):
    return f(copy.deepcopy(x), x)


def method(x, name):
    return getattr(copy.deepcopy(x), name)()


ATTRIBUTES = sorted(
    {name for name in dir(np.ndarray) if not name.startswith("_")} - {"device", "base"} | {"mT"}
)
REQUIRED_ATTRIBUTES = {"T", "mT", "dtype", "nbytes", "ndim", "shape", "size"}


def test_what_python_does_to_arrays(pairs):
    for name, call in UNARY.items():
        for array, x, y in pairs:
            check(f"{name} of {array}", call, x, y, required=name in REQUIRED)
    for f in (getattr(operator, name) for name in BINARY):
        for array, x, y in pairs:
            # NumPy takes bfloat16 and a float to float32.
            for other in (1, None) if x.dtype == BF16 else (1, 0.5, None):
                check(f"{f} of {array} and {other}", on_copy, x, y, f, other)
                if f is not operator.contains:
                    check(f"{f} of {other} and {array}", swapped, x, y, f, other)
            check(f"{f} of {array} twice", twice, x, y, f)


def test_attributes_of_numpy_s_arrays(pairs):
    for name in ATTRIBUTES:
        for array, x, y in pairs:
            if callable(getattr(np.ndarray, name, None)):
                check(f"{name}() of {array}", method, x, y, name)
            elif name != "strides" or (x.flags.c_contiguous and x.size):
                check(f"{name} of {array}", getattr, x, y, name, required=name in REQUIRED_ATTRIBUTES)


def test_functions_of_numpy(pairs):
    """No function of NumPy mistakes device memory for something else."""
    # Those that do other things, and those that accept any object.
    skipped = {"test", "info", "show_config", "show_runtime", "get_include", "seterrcall", "from_dlpack"}
    skipped |= {"bmat", "printoptions", "set_printoptions", "typename", "array_repr"}
    for name in sorted(set(np.__all__) - skipped):
        f = getattr(np, name)
        if isinstance(f, type) or not callable(f):
            continue
        for array, x, y in pairs[5:14]:
            check(f"numpy.{name} of {array}", f, x.copy(), y)


def random_index(rng, shape):
    """An index for some of the axes, and whether it is one that a DeviceArray must take."""
    ends = [None, *range(-8, 9), 2**70, -(2**70)]

    def part(n):
        kind = rng.integers(24)
        if kind < 8:
            return int(rng.integers(-n - 1, n + 1)), True
        if kind < 10:
            return np.int64(rng.integers(-n, max(n, 1))), True
        if kind < 16:
            start, stop = (ends[rng.integers(len(ends))] for _ in range(2))
            return slice(start, stop, [None, 1, 2, -1, -3, 0][rng.integers(6)]), True
        if kind < 18:
            return None, True
        if kind == 18:
            return ..., True
        odd = [True, False, np.True_, 1.0, "x", [0], [True], np.array([0]), np.array(0), b"a", 2**70, (0,)]
        return odd[rng.integers(len(odd))], False

    parts = [part(shape[i] if i < len(shape) else 1) for i in range(rng.integers(0, len(shape) + 2))]
    index = tuple(x for x, _ in parts)
    return (index[0] if len(index) == 1 and rng.integers(2) else index), all(fine for _, fine in parts)


def test_indices(pairs, rng):
    for array, x, y in pairs:
        for _ in range(40):
            index, fine = random_index(rng, x.shape)
            check(f"{array}[{index}]", operator.getitem, x, y, index, required=fine)


def reshape(x, *shape):
    return x.reshape(*shape)


def test_shapes(pairs, rng):
    for array, x, y in pairs:
        shapes = [
            -1,
            (),
            (-1,),
            (0,),
            (-1, 0),
            (0, -1),
            (-2,),
            (1, -1),
            (-1, -1),
            (2.0,),
            "6",
            None,
            [6],
            (x.size,),
        ]
        shapes += [
            (np.int64(2), -1),
            (3, -1),
            (2, 3),
            (3, 2),
            (2, -1, 3),
            (1, 6, 1),
            (True,),
            (2**70,),
            ((6,),),
        ]
        for shape in shapes:
            expected = outcome(np.reshape, x, shape)
            needed = not isinstance(expected, Exception) and shape not in (None, (-2,))
            needed = needed and np.shares_memory(np.reshape(x, shape), x)
            check(f"{array}.reshape({shape})", reshape, x, y, shape, required=needed)
            if isinstance(shape, tuple):
                check(f"{array}.reshape(*{shape})", reshape, x, y, *shape)


def view(x, dtype):
    return x.view(dtype)


def test_views_of_other_types(pairs):
    types = [
        np.uint8,
        np.int16,
        BF16,
        np.float32,
        np.int64,
        np.complex64,
        "f4",
        "O",
        "V0",
        "V3",
        "S2",
        ">f4",
        "x",
    ]
    types += [np.dtype([("a", "u1"), ("b", "u1")]), np.dtype((np.uint8, 2)), object, str, 3, "M8[s]"]
    for array, x, y in pairs:
        for dtype in types:
            if x.dtype == bool or np.dtype(np.bool_) == dtype:
                continue  # the bytes of a view may be invalid as bool
            check(f"{array}.view({dtype})", view, x, y, dtype)
        assert plain(y.view(y.dtype)) == plain(x)


@pytest.mark.parametrize("kind", ["DeviceArray", "ScaledArray", "ShardedArray"])
def test_comparisons_and_truth_are_refused(kind):
    x = np.ones((4, 32), np.float32)
    y = {"DeviceArray": hg.asarray, "ScaledArray": hg.quantize_mxfp8}.get(
        kind, lambda x: hg.shard(x, [0, 0], axis=0)
    )(x)
    for call in (lambda: y == y, lambda: y != 0, lambda: x == y, lambda: y in [y.T]):
        with pytest.raises(TypeError, match=f"^{kind}: (== and != are|implicit)"):
            call()
    with pytest.raises(TypeError, match=f"^{kind}: the truth value of .* is not defined"):
        bool(y)
    assert len({y, y, y.T}) == 2
