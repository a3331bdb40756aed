"""Arrays in device memory."""
