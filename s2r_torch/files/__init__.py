"""Whole files or none; tensors with a JSON header, never executed."""
