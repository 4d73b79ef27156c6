"""What the adapters of inference engines have in common."""
