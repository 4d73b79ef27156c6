"""Measurements whose figures stand in the README: ``make bench`` or ``python -m benchmarks``.

Times are CPU time of one thread, candidates interleaved in one run, medians; ratios come from one run.
"""
