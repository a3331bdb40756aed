"""The project's own tables."""
