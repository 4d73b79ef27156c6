"""Predicates, rules and the compiled dispatcher."""
