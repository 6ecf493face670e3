"""Makes translation_sources.json and the folders marian, marian-codes and m2m-100 in tokenizers/:
ids that transformers' tokenizers of translators give, which call the package sentencepiece.

    pip install "transformers<5" sentencepiece protobuf tokenizers sacremoses
    python tests/golden/make_source_golden.py

Made with the versions that translation_sources.json names. transformers 5 gives the same ids.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import sentencepiece
import transformers
from make_tokenizer_golden import CORPUS, HERE, train_pieces, write

sys.path.append(str(HERE.parent / "python" / "support"))
from tokenizer_texts import SOURCES, TEXTS

FOLDER = HERE / "tokenizers"


def pieces_of(path: Path) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(i) for i in range(model.get_piece_size()) if not model.is_control(i)]


def write_vocabulary(folder: Path, first: list[str], last: list[str], *paths: Path) -> None:
    """A vocabulary in another order than the pieces, without some of them, with a few more."""
    pieces = list(dict.fromkeys(piece for path in paths for piece in pieces_of(path)))
    random.Random(5).shuffle(pieces)
    kept = [piece for i, piece in enumerate(pieces) if i % 11 and piece not in (*first, *last)]
    words = [*first, *kept, "\u2603", "\u2211", *last]
    write(folder, "vocab.json", {word: i for i, word in enumerate(words)})


def make_marian(folder: Path, codes: tuple[str, ...] = ()) -> None:
    model_type = "bpe" if codes else "unigram"
    ids = {"bos_id": -1, "eos_id": 0, "unk_id": 1}
    train_pieces(folder / "source.spm", model_type=model_type, vocab_size=260, **ids)
    held = list(CORPUS)
    CORPUS[:] = [line[::-1] for line in held]  # another language
    train_pieces(folder / "target.spm", vocab_size=250, **ids)
    CORPUS[:] = held
    spm = (folder / "source.spm", folder / "target.spm")
    write_vocabulary(folder, ["</s>", "<unk>", *codes], ["<pad>"], *spm)
    write(folder, "config.json", {"model_type": "marian"})
    settings = {"source_lang": "en", "target_lang": "roa" if codes else "de"}
    write(folder, "tokenizer_config.json", settings)


def make_m2m(folder: Path) -> None:
    train_pieces(folder / "sentencepiece.bpe.model", model_type="bpe")
    first = ["<s>", "<pad>", "</s>", "<unk>"]
    write_vocabulary(folder, first, [], folder / "sentencepiece.bpe.model")
    write(folder, "config.json", {"model_type": "m2m_100"})
    codes = transformers.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
    tokens = [f"__{code}__" for code in codes]
    settings = {"src_lang": "de", "tgt_lang": "fr", "additional_special_tokens": tokens}
    write(folder, "tokenizer_config.json", settings)


CASES: dict[str, Any] = {
    "marian": make_marian,
    "marian-codes": lambda folder: make_marian(folder, (">>fr<<", ">>es<<", ">>pt_BR<<")),
    "m2m-100": make_m2m,
}


def main() -> None:
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {
        "versions": {one.__name__: one.__version__ for one in (transformers, sentencepiece)}
    }
    for name, make in CASES.items():
        folder = FOLDER / name
        if "--keep" not in sys.argv:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            make(folder)
        theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
        texts = [*TEXTS, *SOURCES]
        ids = [theirs(text)["input_ids"] for text in texts]
        found[name] = {
            "ids": ids,
            "target_ids": [theirs(text_target=text)["input_ids"] for text in texts],
            "texts": [theirs.decode(row, skip_special_tokens=True) for row in ids],
        }
    name = "translation_sources.json" if "--keep" not in sys.argv else sys.argv[-1]
    (HERE / name).write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
