"""Declarative, explainable dispatch from compressed-tensors checkpoints to schemes and kernels."""
