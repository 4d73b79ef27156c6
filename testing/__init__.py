"""What plugin authors import to test their rules, schemes and kernels."""
