"""Weights in fewer bits: made here, or kept as a file has them."""
