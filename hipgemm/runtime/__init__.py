"""Which HIP library, devices, streams, memory."""
