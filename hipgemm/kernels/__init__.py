"""What was built, and how it is launched."""
