"""Folders of sentence-transformers: the modules on top of a model."""
