"""A bf16 product of NumPy arrays, checked against float64; then the same with operands kept on the GPU.

Run: make demo
"""

import time

import ml_dtypes
import numpy as np

import hipgemm as hg
from hipgemm import reference, testing


def main() -> None:
    print("on", hg.info().summary)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 512)).astype(ml_dtypes.bfloat16)  # activations (M, K)
    w = rng.standard_normal((384, 512)).astype(ml_dtypes.bfloat16)  # weights (N, K)

    # NumPy in, NumPy out. `w.T` is a view: the kernel reads it in place.
    y = hg.matmul(x, w.T)
    testing.assert_gemm_close(y, x, w.T)  # every element inside the derived bound
    exact = reference.matmul(x, w.T)
    error = np.abs(y.astype(np.float64) - exact).max()
    print(f"matmul {x.shape} @ {w.T.shape} -> {y.shape} {y.dtype}: every element inside the bound")
    print(f"largest error {error:.3g}, largest value {np.abs(exact).max():.3g}")

    # Operands that stay on the GPU: only y2 comes back.
    w_gpu = hg.asarray(w)
    start = time.perf_counter()
    y2 = hg.matmul(hg.asarray(x), w_gpu.T, bias=np.ones(384, np.float32), dtype=np.float32).get()
    milliseconds = 1e3 * (time.perf_counter() - start)
    print(f"resident weights, bias, float32 out: {milliseconds:.1f} ms, mean {y2.mean():+.4f}")

    print("kernels that served:", ", ".join(hg.usage().kernels))
    print(hg.info())


if __name__ == "__main__":
    main()
