"""Readers of the forms in which weights are published."""
