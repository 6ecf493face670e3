"""Texts to texts, by models with an encoder and a decoder."""
