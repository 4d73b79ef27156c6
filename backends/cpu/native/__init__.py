"""The package's own kernels in C++, bound through a plain C ABI. docs/cpu-native.md describes them.

Importing this loads nothing: ``library`` loads the shared library when a kernel is first used.
"""
