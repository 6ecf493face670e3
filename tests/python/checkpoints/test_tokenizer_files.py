"""Tokenizers from before tokenizer.json: ids beside those of transformers, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import BERT, GOLDEN
from packhorse.text import TextTokenizer
from packhorse_weights import CheckpointError, convert, inspect_checkpoint
from packhorse_weights.tokenizers.charsmap import check_charsmap
from packhorse_weights.tokenizers.files import build_tokenizer
from packhorse_weights.tokenizers.sentencepiece import read_sentencepiece
from tokenizer_texts import PAIRS, TEXTS

pytest.importorskip("tokenizers")

FOLDERS = GOLDEN / "tokenizers"
EXPECTED = json.loads((GOLDEN / "tokenizers.json").read_text())
CASES = sorted(EXPECTED.keys() - {"versions"})
PIECES = FOLDERS / "xlm-roberta" / "sentencepiece.bpe.model"


def write(folder: Path, name: str, fields: Any) -> None:
    (folder / name).write_text(json.dumps(fields))


@pytest.fixture
def copied(tmp_path: Path) -> Any:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(FOLDERS / name, tmp_path / name))

    return copy


@pytest.mark.parametrize("name", CASES)
def test_ids_as_transformers(name: str) -> None:
    tokens = TextTokenizer.load(FOLDERS / name).encode([*TEXTS, *PAIRS], None)
    expected = EXPECTED[name]
    for text, ids, theirs in zip([*TEXTS, *PAIRS], tokens.ids, expected["ids"], strict=True):
        assert ids.tolist() == theirs, text
    assert [row.tolist() for row in tokens.type_ids[-len(PAIRS) :]] == expected["type_ids"]


def test_a_tokenizer_json_wins(copied: Any) -> None:
    folder = copied("bert")
    write(folder, "tokenizer.json", {})
    with pytest.raises(ValueError, match="tokenizer.json: "):
        TextTokenizer.load(folder)


def test_vocabulary_of_a_published_model(minilm: Path, tmp_path: Path) -> None:
    """vocab.txt alone gives the ids of the tokenizer.json beside it."""
    tokenizer = json.loads((minilm / "tokenizer.json").read_text())
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    write(tmp_path, "config.json", {"model_type": "bert"})
    ours = TextTokenizer.load(tmp_path).encode([*TEXTS, *PAIRS], None)
    theirs = TextTokenizer.load(minilm).encode([*TEXTS, *PAIRS], None)
    for one, two in zip(ours.ids, theirs.ids, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", ["bert-odd", "roberta", "albert", "mistral-eos"])
def test_converted(name: str, tmp_path: Path) -> None:
    """A converted folder has no config.json that says what the files mean."""
    folder = tmp_path / "folder"
    shutil.copytree(BERT, folder)
    for file in (FOLDERS / name).iterdir():
        if file.name != "config.json":
            shutil.copyfile(file, folder / file.name)
    config = json.loads((folder / "config.json").read_text())
    model_type = json.loads((FOLDERS / name / "config.json").read_text())["model_type"]
    write(folder, "config.json", {**config, "tokenizer_class": CLASSES[model_type]})
    before = TextTokenizer.load(folder)
    after = TextTokenizer.load(convert(folder, tmp_path / "converted"))
    assert [row.tolist() for row in after.encode(TEXTS, None).ids] == EXPECTED[name]["ids"][
        : len(TEXTS)
    ]
    assert after.config.mask_token == before.config.mask_token
    assert after.config.tokenizer is None


def test_converted_folders_name_the_class(tmp_path: Path) -> None:
    """One that only config.json named, without which the text would be lower-cased."""
    folder = tmp_path / "folder"
    shutil.copytree(BERT, folder)
    config = json.loads((folder / "config.json").read_text())
    write(folder, "config.json", {**config, "tokenizer_class": "PreTrainedTokenizerFast"})
    built = build_tokenizer(FOLDERS / "bert-cased", FOLDERS / "bert-cased")
    assert built is not None
    write(folder, "tokenizer.json", built.fields)
    before = TextTokenizer.load(folder).encode(TEXTS, None).ids
    after = TextTokenizer.load(convert(folder, tmp_path / "converted")).encode(TEXTS, None).ids
    assert [row.tolist() for row in after] == [row.tolist() for row in before]
    assert before[4].tolist() == EXPECTED["bert-cased"]["ids"][4]


CLASSES = {
    "bert": "BertTokenizerFast",
    "roberta": "RobertaTokenizer",
    "albert": "AlbertTokenizer",
    "mistral": "LlamaTokenizer",
}


def test_a_token_that_the_package_tokenizers_panics_over(copied: Any) -> None:
    """One that is white space, of which the normalizer leaves nothing."""
    folder = copied("deberta-v2")
    write(folder, "added_tokens.json", {" ": 1000})
    with pytest.raises(ValueError, match=r"texts\[1\]: AddedVocabulary bad split"):
        TextTokenizer.load(folder).encode(["a", "the cat sat \u00e9 end"], None)


def test_text_and_pairs_of_a_model(tmp_path: Path) -> None:
    """The whole way: a folder as published before 2020, and pairs that are joined without text."""
    reranker = Path(shutil.copytree(GOLDEN / "bert-sequence", tmp_path / "model"))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "cat"]
    (reranker / "vocab.txt").write_text("\n".join(tokens) + "\n")
    model = packhorse.TextModel.load(reranker)
    assert model.tokenizer.encode(["a cat"], None).ids[0].tolist() == [2, 5, 13, 3]
    assert model.tokenizer.config.mask_token == "[MASK]"
    assert inspect_checkpoint(reranker).spec["pair"] == {
        "tokens": [2, "query", 3, "document", 3],
        "types": [0, 0, 0, 1, 1],
    }


# --- which class


def test_the_class_decides(copied: Any) -> None:
    folder = copied("camembert")
    write(folder, "config.json", {"model_type": "xlm-roberta"})
    other = TextTokenizer.load(folder).encode(TEXTS, None).ids
    write(folder, "config.json", {"model_type": "new", "tokenizer_class": "CamembertTokenizer"})
    assert TextTokenizer.load(folder).encode(["the cat"], None).ids[0].tolist() != other[3].tolist()
    write(folder, "tokenizer_config.json", {"tokenizer_class": "XLMRobertaTokenizerFast"})
    for one, two in zip(TextTokenizer.load(folder).encode(TEXTS, None).ids, other, strict=True):
        np.testing.assert_array_equal(one, two)
    # Models that come with either: by the files.
    write(folder, "config.json", {"model_type": "new"})
    write(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    for one, two in zip(TextTokenizer.load(folder).encode(TEXTS, None).ids, other, strict=True):
        np.testing.assert_array_equal(one, two)


def test_unknown_classes_and_missing_files(copied: Any) -> None:
    folder = copied("bert")
    write(folder, "tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"})
    with pytest.raises(CheckpointError, match="'BertJapaneseTokenizer' is not supported without a"):
        TextTokenizer.load(folder)
    write(folder, "tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"})
    with pytest.raises(CheckpointError, match="found: config.json.*read instead: vocab.txt"):
        TextTokenizer.load(folder)


def test_a_type_that_is_none(copied: Any) -> None:
    folder = copied("bert")
    write(folder, "config.json", {"model_type": ["bert"]})
    assert (
        TextTokenizer.load(folder).encode(TEXTS, None).ids[3].tolist() == EXPECTED["bert"]["ids"][3]
    )


# --- files that are not what they say


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("bert", "vocab.txt", b"\xff\n", "vocab.txt: not UTF-8"),
        ("bert", "tokenizer_config.json", b'{"do_lower_case": 1}', "do_lower_case: expected true"),
        ("bert", "tokenizer_config.json", b'{"cls_token": 7}', "cls_token is 7, not a token"),
        ("bert", "tokenizer_config.json", b'{"cls_token": null}', "no cls_token"),
        ("bert", "tokenizer_config.json", b'{"cls_token": ""}', "no cls_token"),
        ("bert", "tokenizer_config.json", b'{"cls_token": {"content": 1}}', "is not usable"),
        ("bert", "tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "not usable"),
        ("bert", "tokenizer_config.json", b'{"added_tokens_decoder": {"1": "x"}}', "not a token"),
        ("bert", "added_tokens.json", b'{"a": -1}', "the id -1"),
        ("roberta", "vocab.json", b'{"a": "b"}', "'a' has the id 'b'"),
        ("roberta", "merges.txt", b"#version\na b c\n", "'a b c': expected two tokens of vocab"),
        ("roberta", "merges.txt", b"#version\nzz yy\n", "'zz yy': expected two tokens"),
        ("xlm-roberta", PIECES.name, b"", "not a SentencePiece model: 0 pieces"),
        ("llama", "tokenizer.model", b"IQ== 0\nIg== 1\n", "not a SentencePiece model"),
        ("llama", "tokenizer.model", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    ],
)
def test_refused(copied: Any, name: str, file: str, content: bytes, message: str) -> None:
    folder = copied(name)
    (folder / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        TextTokenizer.load(folder)


def block(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


PIECE = block(1, block(1, b"<unk>"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x0a\xff\xff\xff\xff\x0f", "ends behind its message"),
        (b"\x0a" + b"\xff" * 11, "more than ten bytes"),
        (b"\x0b", "a field of kind 3"),
        (b"\x08\x01", "a number where bytes were expected"),
        (block(1, block(1, b"\xff")), "utf-8"),
        (block(1, b""), "the piece '' of 0 characters"),
        (b"\x0a\x84\x05" + b"\x0a\x81\x05" + b"a" * 641, "of 641 characters"),
        (block(1, block(1, b"a") + b"\x15\x00\x00\xc0\x7f"), "'a' of 1 characters, score nan"),
        (block(1, block(1, b"a") + b"\x15\x00\x00\x80\xff"), "score -inf"),
        (PIECE + block(2, b"\xc0\x02\x05"), "1 pieces, of which the unknown one has the id 5"),
        (PIECE + block(2, b"\x18\x03"), "of type 3; expected 1 .unigram. or 2"),
        (PIECE + block(3, block(2, b"\xff\xff\xff\x7f....")), "do not fit their size"),
        (PIECE + block(3, block(2, b"ab")), "do not fit their size"),
        (PIECE + block(2, b"\xc0\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "no number from 0"),
    ],
)
def test_hostile_pieces(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "spm.model"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=words):
        read_sentencepiece(path)


def test_truncations_and_flipped_bytes_of_pieces(tmp_path: Path) -> None:
    """Either refused or read: never anything else."""
    whole = (FOLDERS / "xlm-roberta" / "sentencepiece.bpe.model").read_bytes()
    path = tmp_path / "spm.model"
    for position in range(0, len(whole), 31):
        flipped = bytearray(whole)
        flipped[position] ^= 0xFF
        for data in (whole[:position], bytes(flipped)):
            path.write_bytes(data)
            try:
                read_sentencepiece(path)
            except CheckpointError:
                continue


def test_rules_of_normalisation_that_lie(copied: Any) -> None:
    """Whatever is not refused can be used: the package tokenizers trusts these rules."""
    folder = copied("xlm-roberta")
    rules = read_sentencepiece(PIECES).charsmap
    whole = PIECES.read_bytes()
    begin = whole.index(rules)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        for position in rng.integers(0, len(rules), 4):
            data[begin + position] = rng.integers(0, 256)
        (folder / PIECES.name).write_bytes(data)
        try:
            TextTokenizer.load(folder).encode(TEXTS, None)
        except CheckpointError:
            refused += 1
    assert 10 < refused < 60


@pytest.mark.parametrize("place", ["within a character", "behind the end"])
def test_texts_of_rules_begin_at_a_character(place: str) -> None:
    rules = bytearray(read_sentencepiece(PIECES).charsmap)
    check_charsmap(bytes(rules))
    size = int.from_bytes(rules[:4], "little")
    rules[4 + size : 6 + size] = "é".encode()
    value = len(rules) if place == "behind the end" else 1
    units = np.frombuffer(rules, "<u4", size // 4, 4)
    leaves = np.flatnonzero(units >> 31)  # units that hold the place of a text
    units[leaves[len(leaves) // 2]] = value | 1 << 31
    with pytest.raises(ValueError, match="texts begin at no character"):
        check_charsmap(bytes(rules))


def test_pieces_as_the_package_reads_them() -> None:
    package = pytest.importorskip("sentencepiece")
    theirs = package.SentencePieceProcessor(model_file=str(PIECES))
    ours = read_sentencepiece(PIECES)
    assert [piece.text for piece in ours.pieces] == [
        theirs.id_to_piece(i) for i in range(theirs.get_piece_size())
    ]
    assert [piece.score for piece in ours.pieces] == [
        theirs.get_score(i) for i in range(theirs.get_piece_size())
    ]
    assert ours.unk_id == theirs.unk_id()


def test_nothing_to_build_from(tmp_path: Path) -> None:
    assert build_tokenizer(tmp_path, tmp_path) is None
