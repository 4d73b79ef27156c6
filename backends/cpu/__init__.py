"""Kernels on torch's own CPU ops."""
