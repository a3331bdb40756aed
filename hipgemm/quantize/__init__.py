"""Quantizers and dequantize."""
