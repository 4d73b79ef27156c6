"""Adapter for Hugging Face transformers."""
