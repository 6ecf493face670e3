"""Checks the compiled rules of normalisation inside SentencePiece models before they are used.

Such rules consist of the size of a trie in bytes, the trie (a double array of 32-bit units) and the
texts that replace its matches, each terminated by a zero byte. The package tokenizers walks the
trie without checking whether it leads out of the array. Sources: `normalizer.cc` of SentencePiece,
and darts-clone for the meaning of the bits of a unit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256  # units among which the next byte of a text selects one
_NODES = 4096  # nodes that are checked at a time


def _offsets(units: NDArray[np.uint32]) -> NDArray[np.uint32]:
    scale = (units & np.uint32(1 << 9)) >> np.uint32(6)
    offsets: NDArray[np.uint32] = (units >> np.uint32(10)) << scale
    return offsets


def check_charsmap(data: bytes) -> None:
    """Raises ValueError for rules that SentencePiece's compiler cannot have made."""
    size = int.from_bytes(data[:4], "little")
    if len(data) < 4 or size % 4 or not 4 <= size <= len(data) - 4:
        raise ValueError("rules of normalisation that do not fit their size")
    units = np.frombuffer(data, "<u4", size // 4, 4)
    texts = data[4 + size :]
    texts.decode("utf-8")  # UnicodeDecodeError is a ValueError
    # A text may begin at any character, or at the end, where it is empty.
    begins = np.append((np.frombuffer(texts, np.uint8) & 0xC0) != 0x80, True)
    labels = np.arange(1, _BLOCK, dtype=np.uint32)
    seen = np.zeros(units.size, bool)
    nodes = _within(_offsets(units[:1]), units.size)
    while nodes.size:
        nodes = np.unique(nodes[~seen[nodes]])
        seen[nodes] = True
        following = [np.empty(0, np.uint32)]
        for start in range(0, nodes.size, _NODES):
            children = nodes[start : start + _NODES, None] ^ labels
            found = (units[children] & np.uint32(0x800000FF)) == labels
            children = children[found]
            reached = _within(children ^ _offsets(units[children]), units.size)
            leaves = reached[(units[children] >> 8) & 1 == 1]
            values = units[leaves] & np.uint32(0x7FFFFFFF)
            if values.max(initial=0) >= begins.size or not begins[values].all():
                raise ValueError("rules of normalisation whose texts begin at no character")
            following.append(reached)
        nodes = np.concatenate(following)


def _within(nodes: NDArray[np.uint32], size: int) -> NDArray[np.uint32]:
    if (nodes | (_BLOCK - 1)).max(initial=0) >= size:
        raise ValueError("rules of normalisation that lead out of their trie")
    return nodes
