"""Kernels: compiled code over rows by their addresses: arrays in, codes out."""
