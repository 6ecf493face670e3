"""Long texts are tokenized in pieces, and only as far as it matters, with the same tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import packhorse.text.tokenization.tokenizer as tokenizer_module
import pytest
from checkpoints import GOLDEN
from packhorse.text import TextTokenizer
from packhorse.text.tokenization import cutting
from packhorse.text.tokenization.token_arrays import TokenArrays, arrays_of
from tiny_tokenizer import KINDS, SPECIAL, WORDS, with_kind

pytest.importorskip("tokenizers")

_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
PIECES = (*WORDS, "singing", "Émile", "e\u0301", "don't", "3.14", "中文字", "\U0001f600", "...")
PIECES += ("[SEP]", "[MASK]", "a\tb", "—", "ﬁne", "\u00a0")
SPACES = (" ",) * 9 + ("  ", "\n", " \n ", "")


def one_word() -> Any:
    """A tokenizer like Llama's: a text is one word, and no merge crosses a space."""
    from tokenizers import models, normalizers

    tokenizer = KINDS["bytes"]()
    names = {i: t.replace("\u0120", "\u2581") for t, i in tokenizer.get_vocab().items()}
    vocabulary = {t: i for i, t in names.items() if len(t) == 1 or t in SPECIAL.values()}
    merges = [("\u2581", "c"), ("\u2581c", "a"), ("\u2581ca", "t"), ("i", "n"), ("in", "g")]
    vocabulary |= {one + two: 90 + i for i, (one, two) in enumerate(merges)}
    tokenizer.model = models.BPE(vocabulary, merges, unk_token="[UNK]", fuse_unk=True)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.pre_tokenizer = None
    return tokenizer


def by_expression() -> Any:
    """A tokenizer like Qwen's: a regular expression finds the words."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    tokenizer = KINDS["bytes"]()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


MAKERS: dict[str, Callable[[], Any]] = {
    **KINDS,
    "one word": one_word,
    "expression": by_expression,
}


class Spy:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.characters = 0
        self.lengths: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def _count(self, texts: Any) -> None:
        self.lengths.append(sum(map(len, (texts,) if isinstance(texts, str) else texts)))
        self.characters += self.lengths[-1]

    def encode(self, *texts: str, **options: Any) -> Any:
        self._count(texts)
        return self._tokenizer.encode(*texts, **options)

    def encode_batch(self, rows: Any, **options: Any) -> Any:
        for row in rows:
            self._count(row)
        return self._tokenizer.encode_batch(rows, **options)

    def encode_batch_fast(self, rows: Any, **options: Any) -> Any:
        for row in rows:
            self._count(row)
        return self._tokenizer.encode_batch_fast(rows, **options)


def load(maker: Callable[[], Any], folder: Path, **settings: Any) -> tuple[TextTokenizer, Any, Spy]:
    """(ours, the package's own, what counts for ours)."""
    with_kind(GOLDEN / "bert-answers", folder, "words", **settings)
    tokenizer = maker()
    tokenizer.no_padding()
    tokenizer.add_special_tokens(["[MASK]", "[SEP]", "[CLS]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    ours = TextTokenizer.load(folder)
    spy = Spy(ours._tokenizer)
    ours._tokenizer = spy  # type: ignore[assignment]
    ours._cutter._tokenizer = spy  # type: ignore[assignment]
    return ours, tokenizer, spy


def random_text(words: int, seed: int) -> str:
    source = random.Random(seed)
    return "".join(source.choice(PIECES) + source.choice(SPACES) for _ in range(words))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MARGIN", 0)  # some characters are left, for added tokens
    for module in (cutting, tokenizer_module):
        monkeypatch.setattr(module, "PIECE", 256)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_cut_as_the_whole(kind: str, side: str, tmp_path: Path) -> None:
    ours, own, spy = load(MAKERS[kind], tmp_path / "m", truncation_side=side)
    cut = 0
    for seed in range(16):
        text = random_text(12 * (seed % 5) + 90, seed)
        other = random_text(60 if seed % 3 == 0 else seed % 9, 1000 + seed)
        row = (text, (text, other), (other, text), ("who", text))[seed % 4]
        pair = (row,) if isinstance(row, str) else row
        strategy = "only_second" if seed % 4 == 3 else "longest_first"
        length = 9 + seed % 5
        own.enable_truncation(length, strategy=strategy, direction=side)
        expected = own.encode(*pair)
        before, spy.characters = ours.num_truncated, 0
        found = ours.encode([row], length, truncation=strategy, offsets=side == "right")
        assert found.ids[0].tolist() == expected.ids
        assert found.type_ids[0].tolist() == expected.type_ids
        assert ours.num_truncated == before + bool(expected.overflowing)
        if side == "right":
            arrays = found.arrays[0]
            characters = zip(arrays.begins.tolist(), arrays.ends.tolist(), strict=True)
            assert list(characters) == expected.offsets
            assert arrays.words.tolist() == [-1 if i is None else i for i in expected.word_ids]
        cut += spy.characters < sum(map(len, pair))
        both = ours.encode([text, ("who", text)], length)  # other numbers of special tokens
        assert [len(ids) for ids in both.ids] == [length, length]
        own.enable_truncation(length, direction=side)
        assert both.ids[0].tolist() == own.encode(text).ids
    assert cut > 4  # texts of which not all was read


@pytest.mark.usefixtures("small_pieces")
def test_the_longer_of_two_long_texts(tmp_path: Path) -> None:
    """The longer text keeps a token more where an odd number of tokens stays."""
    ours, _, _ = load(MAKERS["words"], tmp_path / "m")
    one, two = "cat " * 1000, "the dog " * 499  # 1000 and 998 tokens
    for pair in ((one, two), (two, one), (one, one), (two, one + "a")):
        for length in (40, 41):
            found = ours.encode([pair], length).ids[0].tolist()
            lengths = [len(text.split()) for text in pair]
            kept = found.index(3) - 1, len(found) - found.index(3) - 2
            half = (length - 3) // 2
            longer = int(lengths[1] >= lengths[0])
            assert kept[1 - longer] == half
            assert kept[longer] == length - 3 - half
    assert ours.num_truncated == 8


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_little_is_read(kind: str, side: str, tmp_path: Path) -> None:
    ours, own, spy = load(MAKERS[kind], tmp_path / "m", truncation_side=side)
    text = "the cat sat on the mat " * 10_000
    for row in (text, ("who sat", text)):
        spy.characters = 0
        found = ours.encode([row], 40)
        assert ours.num_truncated == 1 + isinstance(row, tuple)
        assert spy.characters < 4000
        own.enable_truncation(40, direction=side)
        few = text[:3000] if side == "right" else text[-3000:]
        pair = (few,) if isinstance(row, str) else (row[0], few)
        assert found.ids[0].tolist() == own.encode(*pair).ids


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_one_enormous_word(kind: str, tmp_path: Path) -> None:
    ours, own, spy = load(MAKERS[kind], tmp_path / "m")
    text = "the " + "x" * 100_000 + " cat"
    own.enable_truncation(40)
    assert ours.encode([text], 40).ids[0].tolist() == own.encode(text).ids
    assert spy.characters == len(text)


@pytest.mark.parametrize("side", ["right", "left"])
def test_long_words(side: str, tmp_path: Path) -> None:
    """Long tokens make more of the text be read."""
    ours, own, spy = load(MAKERS["words"], tmp_path / "m", truncation_side=side)
    text = ("4" * 70 + " cat ") * 3000
    own.enable_truncation(40, direction=side)
    assert ours.encode([text], 40).ids[0].tolist() == own.encode(text).ids
    assert 2000 < spy.characters < 20_000


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", MAKERS)
def test_too_long(kind: str, tmp_path: Path) -> None:
    """A text's tokens are counted piece by piece."""
    ours, own, spy = load(MAKERS[kind], tmp_path / "m")
    text = "the cat sat on the mat " * 200
    for row in (text, ("who", text), (text, "who")):
        size = len(own.encode(*((row,) if isinstance(row, str) else row)))
        with pytest.raises(ValueError, match=rf"texts\[0\] has {size} tokens, max_length is 40"):
            ours.encode([row], 40, truncation=False)
    assert max(spy.lengths) < 2.1 * 256
    with pytest.raises(ValueError, match=r"texts\[1\] has a lone surrogate, .* at position 4600"):
        ours.encode(["the", text + "\ud83d"], 40, truncation=False)
    with pytest.raises(ValueError, match=r"texts\[1\] has a lone surrogate, .* at position 4"):
        ours.encode(["the", "cat \ud83d " + text], 40)


def test_steps_that_look_farther(tmp_path: Path) -> None:
    """A tokenizer that is not known to look at neighbours alone gets the whole text."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    def make(**changes: Any) -> Callable[[], Any]:
        def maker() -> Any:
            tokenizer = KINDS["bytes"]()
            for name, value in changes.items():
                setattr(tokenizer, name, value)
            return tokenizer

        return maker

    text = "the cat sat on the mat " * 300
    for i, maker in enumerate(
        (
            make(pre_tokenizer=pre_tokenizers.Split(Regex("(?m).+?x|.+"), "isolated")),
            make(pre_tokenizer=pre_tokenizers.UnicodeScripts()),
            make(normalizer=normalizers.Replace(Regex("a.*b"), "")),
            make(pre_tokenizer=pre_tokenizers.ByteLevel(use_regex=False)),
        )
    ):
        ours, own, spy = load(maker, tmp_path / str(i))
        own.enable_truncation(40)
        assert ours.encode([text], 40).ids[0].tolist() == own.encode(text).ids
        assert spy.characters == len(text)


def check_same(found: TokenArrays, expected: TokenArrays) -> None:
    for name in ("ids", "type_ids", "parts", "begins", "ends"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for words in (found.words, expected.words):
        assert (words[expected.parts < 0] == -1).all()
    np.testing.assert_array_equal(np.diff(found.words) != 0, np.diff(expected.words) != 0)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", MAKERS)
def test_pieces_as_the_whole(kind: str, tmp_path: Path) -> None:
    ours, own, _ = load(MAKERS[kind], tmp_path / "m")
    rows: list[Any] = [random_text(40 * seed, seed) for seed in range(8)]
    rows += [("who", row) for row in rows] + ["x" * 2000, "中" * 1000, " " * 1000]
    for row, found in zip(rows, ours.read(rows), strict=True):
        check_same(found, arrays_of(own.encode(*((row,) if isinstance(row, str) else row))))


def in_other_words(name: str) -> Any:
    """Byte-level tokenizers whose words are not parted at spaces, though a step of each does that
    in other company; of the last, spaces around ideographs are tokens."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    tokenizer = KINDS["bytes"]()
    write = normalizers.Replace(" ", "\u2581")
    metaspace = pre_tokenizers.Metaspace(split=False)
    steps: dict[str, tuple[Any, Any]] = {
        "written bytes": (normalizers.ByteLevel(), pre_tokenizers.Whitespace()),
        "as gemma": (write, pre_tokenizers.Split(" ", "merged_with_previous")),
        "written space": (write, pre_tokenizers.WhitespaceSplit()),
        "written first": (
            normalizers.NFC(),
            pre_tokenizers.Sequence([metaspace, pre_tokenizers.WhitespaceSplit()]),
        ),
        "joined": (normalizers.NFC(), pre_tokenizers.Split(Regex(_PATTERN), "contiguous")),
        "space at the end": (
            normalizers.NFC(),
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(" ", "merged_with_previous"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
        ),
        "ideographs": (
            normalizers.BertNormalizer(),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ),
    }
    tokenizer.normalizer, tokenizer.pre_tokenizer = steps[name]
    return tokenizer


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "name",
    [
        "written bytes",
        "as gemma",
        "written space",
        "written first",
        "joined",
        "space at the end",
        "ideographs",
    ],
)
def test_words_that_no_space_parts(name: str, tmp_path: Path) -> None:
    ours, own, _ = load(lambda: in_other_words(name), tmp_path / "m")
    rows: list[Any] = [random_text(200, seed) for seed in range(4)] + ["\u4e2d\u6587" * 1000]
    for row, found in zip(rows, ours.read(rows), strict=True):
        check_same(found, arrays_of(own.encode(row)))


def test_merges_across_written_spaces(tmp_path: Path) -> None:
    """A tokenizer writes spaces as another character: a text is cut only where no merge crosses
    one."""
    from tokenizers import models

    def maker() -> Any:
        tokenizer = in_other_words("as gemma")
        merges = [("t", "\u2581"), ("a", "t\u2581"), ("at\u2581", "at\u2581")]
        names = [*SPECIAL.values(), *"actdog", "\u2581", *(one + two for one, two in merges)]
        vocabulary = {token: i for i, token in enumerate(names)}
        tokenizer.model = models.BPE(vocabulary, merges, unk_token="[UNK]", fuse_unk=True)
        return tokenizer

    ours, own, spy = load(maker, tmp_path / "m")
    text = "at " * 10_001
    own.enable_truncation(40)
    assert ours.encode([text], 40).ids[0].tolist() == own.encode(text).ids
    assert spy.characters == len(text)


def test_pieces_are_small(tmp_path: Path) -> None:
    """Little of a long context is read at once, and its answers are those of its windows."""
    ours, _, spy = load(MAKERS["words"], tmp_path / "m")
    text = "the cat sat on the mat " * 10_000
    (tokens,) = ours.read([("who", text)])
    assert len(tokens.ids) == 4 + 6 * 10_000
    assert max(spy.lengths) < 2.1 * cutting.PIECE
    assert spy.characters < 1.05 * len(text)
    model = packhorse.TextModel.load(tmp_path / "m")
    found = model.answer("who", text[: 23 * 1000])
    assert text[found["start"] : found["end"]] == found["answer"]
