"""Pages of the cache of keys and values."""

#: Tokens of a page, which is also the tile of keys of the attention kernels.
PAGE_TOKENS = 64
