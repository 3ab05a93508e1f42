"""Benchmarks: workloads, schemes and peers side by side; every figure is a ratio of one run."""
