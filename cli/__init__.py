"""The quantdispatch command."""
