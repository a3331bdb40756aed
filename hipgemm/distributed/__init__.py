"""Arrays sharded over devices or MPI ranks, and their products."""
