"""Makes tokenizers/ and tokenizers.json: folders without a tokenizer.json, and transformers' ids.

    pip install "transformers<5" sentencepiece protobuf tokenizers
    python tests/golden/make_tokenizer_golden.py [NAME ...]

tokenizers/NAME   tiny vocabularies in the forms from before tokenizer.json, trained here by the
                  packages tokenizers and sentencepiece, with the settings of a model folder
tokenizers.json   ids and type ids of AutoTokenizer (fast) for TEXTS and PAIRS of tokenizer_texts.py
Made with the versions that tokenizers.json names.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
import transformers

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python" / "support"))
from tokenizer_texts import PAIRS, TEXTS  # noqa: E402

CORPUS = [
    "the cat sat on the mat, and the dog said: is that what you'd call a mat?",
    "The Quick brown fox jumps over the lazy dog. It's 1,234 miles; isn't that 5,678 km?",
    "naïve café déjà vu Ångström ÉCOLE straße İstanbul",
    "中文 和 日本語 テスト 漢字 한국어 русский язык ελληνικά",
    "hello world, hello tokens ... numbers 0 1 2 3 4 5 6 7 8 9, 10, 99,",
    'he said "no" and (maybe) [yes] {sure} <tag> a/b a_b a-b #1 $5 50% &co * + = ~ ^ |',
    "mark paris when where who the cats dogs sitting walked walking talked",
] * 4
ADDED = {"single_word": False, "lstrip": False, "rstrip": False}
# A few rules, as those of NFKC would make large files.
RULES = {
    "ﬁ": "fi",
    "\uff21": "A",
    "\uff41": "a",
    "①": "1",
    "\t": " ",
    "\u00a0": " ",
    "\u200b": "",
    "…": "...",
}


def train_wordpiece(special: list[str], lowercase: bool) -> list[str]:
    trained = tokenizers.BertWordPieceTokenizer(lowercase=lowercase)
    trained.train_from_iterator(
        CORPUS, vocab_size=300, min_frequency=1, special_tokens=special, show_progress=False
    )
    vocab = trained.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def train_bpe(folder: Path, special: list[str]) -> None:
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(
        CORPUS, vocab_size=400, min_frequency=1, special_tokens=special, show_progress=False
    )
    trained.save_model(str(folder))


def train_pieces(path: Path, rules: bool = True, **options: Any) -> None:
    model = io.BytesIO()
    tsv = Path("rules.tsv")  # relative, because the model keeps the path
    normal = "identity"
    if rules:
        lines = [
            f"{' '.join(f'{ord(c):X}' for c in one)}\t{' '.join(f'{ord(c):X}' for c in two)}"
            for one, two in RULES.items()
        ]
        tsv.write_text("\n".join(lines) + "\n")
        options["normalization_rule_tsv"] = str(tsv)
    else:
        options["normalization_rule_name"] = normal
    settings = {"vocab_size": 300, "model_type": "unigram", "hard_vocab_limit": False, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, character_coverage=0.98,
        minloglevel=2, num_threads=1, **settings,
    )  # fmt: skip
    tsv.unlink(missing_ok=True)
    path.write_bytes(model.getvalue())


def write(folder: Path, name: str, fields: Any) -> None:
    (folder / name).write_text(json.dumps(fields, ensure_ascii=False) + "\n")


def vocab_txt(folder: Path, special: list[str], lowercase: bool = True) -> None:
    tokens = train_wordpiece(special, lowercase)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def make_bert(folder: Path) -> str:
    vocab_txt(folder, BERT)
    return "bert"


def make_bert_cased(folder: Path) -> str:
    vocab_txt(folder, BERT, lowercase=False)
    write(folder, "tokenizer_config.json", {"do_lower_case": False, "never_split": ["a/b"]})
    return "bert"


def make_bert_odd(folder: Path) -> str:
    """BERT with its own names of tokens, two more tokens, other settings; lines that end as on
    Windows."""
    tokens = train_wordpiece(["<pad>", "<unk>", "<cls>", "<sep>"], lowercase=False)
    (folder / "vocab.txt").write_bytes("\r\n".join(tokens).encode())
    settings = {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}
    write(folder, "tokenizer_config.json", {**settings, "tokenizer_class": "BertTokenizer"})
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "unk", "cls", "sep")}
    mask = {"content": "<mask>", **ADDED, "lstrip": True, "normalized": False}
    more = {"mask_token": mask, "additional_special_tokens": ["Sêp"]}
    write(folder, "special_tokens_map.json", {**names, **more})
    numbers = {"<tag>": 0, "<mask>": 1, "Tâg": 2, "Sêp": 3}
    write(folder, "added_tokens.json", {name: len(tokens) + i for name, i in numbers.items()})
    return "bert"


def make_distilbert(folder: Path) -> str:
    """Tokens by number, as transformers has written them since 4.34."""
    vocab_txt(folder, BERT)
    decoder = {
        str(i): {"content": token, **ADDED, "normalized": False, "special": True}
        for i, token in enumerate(BERT)
    }
    count = len((folder / "vocab.txt").read_text().splitlines())
    decoder[str(count)] = {"content": "Foo", **ADDED, "normalized": True, "special": False}
    settings = {"tokenizer_class": "DistilBertTokenizer", "added_tokens_decoder": decoder}
    write(folder, "tokenizer_config.json", {**settings, "strip_accents": False})
    return "distilbert"


def make_mpnet(folder: Path) -> str:
    vocab_txt(folder, ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"])
    return "mpnet"


def make_roberta(folder: Path) -> str:
    train_bpe(folder, FAIRSEQ)
    return "roberta"


def make_roberta_prefix(folder: Path) -> str:
    train_bpe(folder, FAIRSEQ)
    settings = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}
    more = {"additional_special_tokens": ["<tag>"]}
    write(folder, "tokenizer_config.json", {**settings, "trim_offsets": True, **more})
    return "roberta"


def make_roberta_older(folder: Path) -> str:
    """A mask token that is not as the class would have it."""
    train_bpe(folder, FAIRSEQ[:-1])
    mask = {"content": "<mask>", **ADDED, "rstrip": True, "normalized": False}
    write(folder, "special_tokens_map.json", {"mask_token": mask})
    count = len(json.loads((folder / "vocab.json").read_text()))
    write(folder, "added_tokens.json", {"<mask>": count, "<tag>": count + 1})
    return "roberta"


def make_deberta(folder: Path) -> str:
    train_bpe(folder, ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"])
    return "deberta"


def make_qwen2(folder: Path) -> str:
    train_bpe(folder, [])
    vocab = json.loads((folder / "vocab.json").read_text())
    tokens = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    decoder = {
        str(len(vocab) + i): {"content": token, **ADDED, "normalized": False, "special": True}
        for i, token in enumerate(tokens)
    }
    settings = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": decoder}
    ends = {"eos_token": "<|im_end|>", "additional_special_tokens": list(tokens[1:])}
    write(folder, "tokenizer_config.json", {**settings, **ends})
    return "qwen2"


def make_xlm_roberta(folder: Path) -> str:
    train_pieces(folder / "sentencepiece.bpe.model", user_defined_symbols=["<tag>"])
    return "xlm-roberta"


def make_camembert(folder: Path) -> str:
    train_pieces(folder / "sentencepiece.bpe.model", rules=False)
    return "camembert"


def make_albert(folder: Path) -> str:
    train_pieces(
        folder / "spiece.model", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    )  # fmt: skip
    return "albert"


def make_albert_accents(folder: Path) -> str:
    shutil.copyfile(folder.parent / "albert" / "spiece.model", folder / "spiece.model")
    settings = {"keep_accents": True, "do_lower_case": False}
    write(folder, "tokenizer_config.json", settings)
    return "albert"


def make_deberta_v2(folder: Path) -> str:
    train_pieces(
        folder / "spm.model", pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]",
        bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]",
    )  # fmt: skip
    return "deberta-v2"


def make_deberta_v2_punct(folder: Path) -> str:
    shutil.copyfile(folder.parent / "deberta-v2" / "spm.model", folder / "spm.model")
    settings = {"do_lower_case": True, "split_by_punct": True, "vocab_type": "spm"}
    write(folder, "tokenizer_config.json", settings)
    return "deberta-v2"


LLAMA = {
    "rules": False, "model_type": "bpe", "byte_fallback": True, "vocab_size": 500,
    "remove_extra_whitespaces": False, "split_digits": True, "allow_whitespace_only_pieces": True,
}  # fmt: skip


def make_llama(folder: Path) -> str:
    train_pieces(folder / "tokenizer.model", **LLAMA)
    return "llama"


def make_mistral_eos(folder: Path) -> str:
    """Tokenizer like E5-Mistral's: the end of a text is marked; the newer treatment of white
    space."""
    shutil.copyfile(folder.parent / "llama" / "tokenizer.model", folder / "tokenizer.model")
    settings = {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True, "legacy": False}
    write(folder, "tokenizer_config.json", {**settings, "pad_token": "</s>"})
    return "mistral"


T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


def make_t5(folder: Path) -> str:
    train_pieces(folder / "spiece.model", **T5_IDS)
    return "t5"


def make_pegasus(folder: Path) -> str:
    shutil.copyfile(folder.parent / "t5" / "spiece.model", folder / "spiece.model")
    return "pegasus"


def make_mbart(folder: Path) -> str:
    from_roberta = folder.parent / "xlm-roberta" / "sentencepiece.bpe.model"
    shutil.copyfile(from_roberta, folder / "sentencepiece.bpe.model")
    return "mbart"


def make_mbart_50(folder: Path) -> str:
    make_mbart(folder)
    write(folder, "tokenizer_config.json", {"tokenizer_class": "MBart50Tokenizer"})
    return "mbart"


def make_nllb(folder: Path) -> str:
    train_pieces(folder / "sentencepiece.bpe.model", model_type="bpe")
    settings = {"tokenizer_class": "NllbTokenizer", "src_lang": "deu_Latn"}
    write(folder, "tokenizer_config.json", settings)
    return "m2m_100"


def make_bart(folder: Path) -> str:
    train_bpe(folder, FAIRSEQ)
    return "bart"


def make_blenderbot(folder: Path) -> str:
    train_bpe(folder, FAIRSEQ)
    write(folder, "tokenizer_config.json", {"add_prefix_space": True})
    return "blenderbot"


CASES = {
    name.removeprefix("make_").replace("_", "-"): function
    for name, function in list(globals().items())
    if name.startswith("make_")
}


def main() -> None:
    path = HERE / "tokenizers.json"
    names = sys.argv[1:] or [*CASES]
    found: dict[str, Any] = json.loads(path.read_text()) if sys.argv[1:] else {}
    found["versions"] = {
        module.__name__: module.__version__ for module in (transformers, tokenizers, sentencepiece)
    }
    for name in names:
        folder = HERE / "tokenizers" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make = CASES[name]
        write(folder, "config.json", {"model_type": make(folder)})
        theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
        if not theirs.is_fast:
            raise SystemExit(f"{name}: {type(theirs).__name__} is not one of tokenizers")
        # Texts are in lists: transformers takes an empty second text by itself for none.
        pairs = [theirs([one], [two])["input_ids"][0] for one, two in PAIRS]
        found[name] = {
            "ids": [theirs(text)["input_ids"] for text in TEXTS] + pairs,
            "type_ids": [theirs.backend_tokenizer.encode(*pair).type_ids for pair in PAIRS],
        }
    path.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
