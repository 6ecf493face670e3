"""Models by name: the cache of Hugging Face."""
