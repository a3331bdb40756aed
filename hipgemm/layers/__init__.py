"""Linear layers, forward and backward."""
