"""Tokenizers made of files of any format."""
