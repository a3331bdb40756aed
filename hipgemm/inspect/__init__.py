"""Reports: supported calls, usage, counters, the runtime."""
