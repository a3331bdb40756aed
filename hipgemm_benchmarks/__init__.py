"""What ``python -m hipgemm bench`` and ``explain --check`` measure and print."""
