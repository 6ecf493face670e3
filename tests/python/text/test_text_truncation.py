"""Texts and pairs are cut as the package tokenizers cuts them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import GOLDEN
from packhorse.text import TextTokenizer
from packhorse.text.tokenization.token_arrays import arrays_of
from tiny_tokenizer import KINDS, WORDS, make_byte_tokenizer, with_kind

pytest.importorskip("tokenizers")


def with_prefix_space() -> Any:
    """A tokenizer that has a space before the first word, too, like XLM-RoBERTa's predecessors."""
    from tokenizers import pre_tokenizers, processors

    tokenizer = make_byte_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("[SEP]", 3), ("[CLS]", 2), trim_offsets=True, add_prefix_space=True
    )
    return tokenizer


def without_processor() -> Any:
    tokenizer = KINDS["words"]()
    tokenizer.post_processor = None
    return tokenizer


MAKERS: dict[str, Callable[[], Any]] = {
    **KINDS,
    "prefix space": with_prefix_space,
    "no processor": without_processor,
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_cut_as_the_package_does(maker: str, side: str, tmp_path: Path) -> None:
    folder = with_kind(GOLDEN / "bert-answers", tmp_path / "m", "words", truncation_side=side)
    own = MAKERS[maker]()
    own.no_padding()
    own.save(str(folder / "tokenizer.json"))
    ours = TextTokenizer.load(folder)
    choose = random.Random(0)
    refused = cut = 0

    def text(most: int) -> str:
        words = (
            choose.choice((*WORDS, "singing", "a  cat", "don't", "Émile")) for _ in range(most)
        )
        return " ".join(words)

    for _ in range(100):
        one, two = text(choose.randrange(12)), text(choose.randrange(12))
        row = choose.choice([one, (one, two)])
        strategy = choose.choice(["longest_first", "only_first", "only_second"])
        length = choose.randrange(5, 20)
        own.enable_truncation(length, strategy=strategy, direction=side)
        try:
            expected = own.encode(*((row,) if isinstance(row, str) else row))
        except Exception as error:
            with pytest.raises(ValueError, match=rf"^texts\[7\]: {error} \(max_length {length}, "):
                ours.encode([row], length, truncation=strategy, first=7)
            refused += 1
            continue
        before = ours.num_truncated
        found = ours.encode([row], length, truncation=strategy, offsets=True)
        assert ours.num_truncated == before + bool(expected.overflowing)
        assert found.ids[0].tolist() == expected.ids
        assert found.type_ids[0].tolist() == expected.type_ids
        for array, right in zip(found.arrays[0], arrays_of(expected), strict=True):
            assert array.tolist() == right.tolist()
        plain = ours.encode([row], length, truncation=strategy)
        assert (plain.ids[0].tolist(), plain.arrays) == (expected.ids, [])
        cut += bool(expected.overflowing)
    assert refused > 3
    assert cut > 20
