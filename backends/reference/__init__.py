"""Plain torch kernels for any device and any legal shape; slow, chosen last."""
