"""GGUF files, as llama.cpp reads them."""
