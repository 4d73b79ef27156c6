"""What adapters for other engines share: is the engine one to adapt to, what its layers are in the checkpoint, how
their tensors are loaded and cut for a rank, which kernels compute them, and what is said of it. Knows no engine."""
