"""Texts to tokens: tokenizers, and what becomes of long texts."""
