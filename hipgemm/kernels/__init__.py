"""The kernels that were built, and their launches."""
