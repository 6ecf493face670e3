"""Choice of the tokens that stay of a text or pair that has too many of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packhorse.packing import Int32Array

STRATEGIES = ("longest_first", "only_first", "only_second")


def kept_sizes(first: int, second: int | None, room: int, strategy: object) -> tuple[int, int]:
    """Numbers of tokens kept of each text, of `first` and `second` tokens that do not fit into
    `room`; a `second` of None says that there is one text. As the package tokenizers cuts.

    Raises ValueError where the text to cut would lose all of its tokens, or is not there.
    """
    if strategy == "longest_first":
        if second is None:
            return room, 0
        shorter, longer = min(first, second), max(first, second)
        longer = shorter if shorter > room else max(shorter, room - shorter)
        if shorter + longer > room:
            shorter = room // 2
            longer = room - shorter
        return (longer, shorter) if first > second else (shorter, longer)
    if strategy == "only_second" and second is None:
        raise ValueError("Truncation error: Second sequence not provided")
    sizes = [first, second or 0]
    cut = 0 if strategy == "only_first" else 1
    sizes[cut] -= sum(sizes) - room
    if sizes[cut] <= 0:
        raise ValueError(
            "Truncation error: Sequence to truncate too short to respect the provided max_length"
        )
    return sizes[0], sizes[1]


def kept_tokens(
    parts: Int32Array, is_pair: bool, max_length: int, strategy: object, side: str
) -> npt.NDArray[np.intp]:
    """Numbers of the tokens that stay, of a text or pair with more than `max_length` of them.

    parts  of each token: 0 or 1, the text that it is of; -1: a special token, which stays
    side   where a text is cut, "right" or "left"
    """
    places = [np.flatnonzero(parts == part) for part in (0, 1)]
    first, second = (place.size for place in places)
    room = max_length - (parts.size - first - second)
    sizes = kept_sizes(first, second if is_pair else None, room, strategy)
    stays = parts < 0
    for place, size in zip(places, sizes, strict=True):
        stays[place[:size] if side == "right" else place[place.size - size :]] = True
    return np.flatnonzero(stays)
