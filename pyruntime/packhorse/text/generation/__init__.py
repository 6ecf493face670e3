"""Texts that a model writes: prompts, options, pieces, tools."""
