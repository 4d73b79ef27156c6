"""One file a scheme family: stored tensors, post-load conversion, reference numerics."""
