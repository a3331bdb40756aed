"""The HIP runtime: library selection, devices, streams, memory."""
