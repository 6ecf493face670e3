"""PyTorch's own files, read without PyTorch."""
