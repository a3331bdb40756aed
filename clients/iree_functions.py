"""Functions that IREE compiles for an architecture and runs by its own HIP driver.

python clients/iree_functions.py gfx950

Raises where a result is further from NumPy's than its bound.
"""

from __future__ import annotations

import sys

import numpy as np
from iree import compiler, runtime

SOURCE = """
func.func @matmul(%a: tensor<128x96xf16>, %b: tensor<96x64xf16>) -> tensor<128x64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<128x64xf32>
  %c = linalg.fill ins(%zero : f32) outs(%empty : tensor<128x64xf32>) -> tensor<128x64xf32>
  %r = linalg.matmul ins(%a, %b : tensor<128x96xf16>, tensor<96x64xf16>)
                     outs(%c : tensor<128x64xf32>) -> tensor<128x64xf32>
  return %r : tensor<128x64xf32>
}
func.func @softmax(%x: tensor<37x300xf32>) -> tensor<37x300xf32> {
  %empty = tensor.empty() : tensor<37x300xf32>
  %r = linalg.softmax dimension(1) ins(%x : tensor<37x300xf32>)
                                   outs(%empty : tensor<37x300xf32>) -> tensor<37x300xf32>
  return %r : tensor<37x300xf32>
}
func.func @sum(%x: tensor<50x1000xf32>) -> tensor<50xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<50xf32>
  %c = linalg.fill ins(%zero : f32) outs(%empty : tensor<50xf32>) -> tensor<50xf32>
  %r = linalg.reduce { arith.addf } ins(%x : tensor<50x1000xf32>) outs(%c : tensor<50xf32>) dimensions = [1]
  return %r : tensor<50xf32>
}
"""


def main(arch: str) -> None:
    """Compile the functions, and call each."""
    image = compiler.compile_str(SOURCE, target_backends=["rocm"], extra_args=[f"--iree-rocm-target={arch}"])
    config = runtime.Config("hip")
    module = runtime.load_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, image), config)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((128, 96), (96, 64)))
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((37, 300), (50, 1000)))
    e = np.exp(x.astype(np.float64))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    rounding = 2.0**-24
    cases = {
        "matmul": ((a, b), wide_a @ wide_b, np.max(np.abs(wide_a) @ np.abs(wide_b)) * 96 * rounding),
        "softmax": ((x,), e / e.sum(1, keepdims=True), 1e-6),
        "sum": ((y,), y.astype(np.float64).sum(1), np.max(np.abs(y).sum(1)) * 1000 * rounding),
    }
    for name, (arguments, wanted, bound) in cases.items():
        error = np.max(np.abs(module[name](*arguments).to_host() - wanted))
        print(f"{name}: error {error:.2g}, at most {bound:.2g}")
        if not error <= bound:
            raise SystemExit(f"{name} is wrong")


if __name__ == "__main__":
    main(sys.argv[1])
