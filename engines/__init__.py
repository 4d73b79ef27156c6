"""Adapters to the programs that run models, and what they share: quantized modules, loading, verifying, generating."""
