"""Heads of cross attention that follow the audio, by which words are timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packhorse.number_checks import is_int

Heads = tuple[tuple[int, int], ...]

# Heads of openai's models, as these name them (`alignment_heads` of their generation_config.json,
# chosen by eye by their authors), for folders that lost the list: by layers and heads of the
# decoder, and tokens, of which models that know English alone have one less than the first that
# know more, and those since large-v3 one more. Models that were trained further have them, too.
# large-v1 has the numbers of large-v2.
_KNOWN: dict[tuple[int, int, int], Mapping[int, tuple[int, ...]]] = {
    (4, 6, 51864): {1: (0,), 2: (0, 5), 3: (0, 1, 2, 3, 4)},  # tiny.en
    (4, 6, 51865): {2: (2,), 3: (0, 2, 3, 4, 5)},  # tiny
    (6, 8, 51864): {3: (3,), 4: (7,), 5: (1, 5, 7)},  # base.en
    (6, 8, 51865): {3: (1,), 4: (2, 3, 7), 5: (1, 2, 4, 6)},  # base
    (12, 12, 51864): {
        6: (6,),
        7: (0, 3, 8),
        8: (2, 5, 7),
        9: (0, 4, 8, 10),
        10: (0, 1, 2, 3, 6, 11),
        11: (2, 4),
    },  # small.en
    (12, 12, 51865): {5: (3, 9), 8: (0, 4, 7, 8), 9: (0, 7, 9), 10: (5,)},  # small
    (24, 16, 51864): {
        11: (4,),
        14: (1, 12, 14),
        15: (4,),
        16: (0, 4, 9),
        17: (12, 14),
        18: (7, 10, 15),
        20: (0, 3, 9, 14),
        21: (12,),
    },  # medium.en
    (24, 16, 51865): {13: (15,), 15: (4, 15), 16: (1,), 20: (0,), 23: (4,)},  # medium
    (32, 20, 51865): {
        10: (12,),
        13: (17,),
        16: (11, 12, 13),
        17: (15, 16),
        18: (4, 11, 19),
        19: (11,),
        21: (2, 3),
        22: (3, 9, 12),
        23: (5, 7, 13),
        25: (5,),
        26: (1, 12),
        27: (15,),
    },  # large-v2
    (32, 20, 51866): {
        7: (0,),
        10: (17,),
        12: (18,),
        13: (12,),
        16: (1,),
        17: (14,),
        19: (11,),
        21: (4,),
        24: (1,),
        25: (6,),
    },  # large-v3
    (4, 20, 51866): {2: (4, 11), 3: (3, 6, 11, 14)},  # turbo
}


def alignment_heads(given: Any, spec: Mapping[str, Any]) -> Heads:
    """(layer, head) of the decoder's cross attention that follow the audio: those that a model's
    files name; without any, those of openai's model of these sizes; and else all of the latter half
    of its layers. Distilled models come with heads of their teacher, in layers that they do not
    have, which counts as without any. Raises ValueError for what is no list of heads."""
    stack = [*spec["stacks"].values()][-1]
    counts = [int(layer["blocks"][1]["num_heads"]) for layer in stack["layers"]]
    if given is not None:
        pairs = list(given) if isinstance(given, list | tuple) else []
        if not pairs or not all(map(_is_pair, pairs)) or len(set(map(tuple, pairs))) < len(pairs):
            raise ValueError(
                f"alignment_heads of the model's files are {given!r:.80}, expected pairs (layer, "
                f"head) of {len(counts)} layers of {max(counts)} heads, each once"
            )
        if all(layer < len(counts) and head < counts[layer] for layer, head in pairs):
            return tuple((layer, head) for layer, head in pairs)
    tokens = int(stack["stem"]["vocab_size"])
    if known := _KNOWN.get((len(counts), max(counts), tokens)):
        return tuple((layer, head) for layer, heads in known.items() for head in heads)
    latter = range(len(counts) // 2, len(counts))
    return tuple((layer, head) for layer in latter for head in range(counts[layer]))


def _is_pair(pair: Any) -> bool:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return False
    return all(is_int(one) and one >= 0 for one in pair)
