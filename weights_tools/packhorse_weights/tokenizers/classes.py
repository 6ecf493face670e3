"""The tokenizer classes of transformers, by what they do beside a tokenizer.json.

Names are without "Tokenizer" and "Fast" at the end; "" is a class that is made for no family of
models. Source: transformers 5 (`AutoTokenizer` and the classes), where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packhorse_weights.tokenizers.special_tokens import Names

_GENERIC = ("PreTrained", "TokenizersBackend")
_BERT = Names(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_FAIRSEQ = Names(
    bos="<s>", eos="</s>", unk="<unk>", sep="</s>", pad="<pad>", cls="<s>", mask="<mask>"
)
_DEBERTA = replace(_BERT, bos="[CLS]", eos="[SEP]")
_ALBERT = replace(_DEBERTA, unk="<unk>", pad="<pad>")
_LLAMA = Names(bos="<s>", eos="</s>", unk="<unk>")
_GPT2 = Names(bos="<|endoftext|>", eos="<|endoftext|>", unk="<|endoftext|>")
_QWEN2 = Names(eos="<|endoftext|>", unk="<|endoftext|>", pad="<|endoftext|>")
_T5 = Names(eos="</s>", unk="<unk>", pad="<pad>")

# The special tokens that a class has where no file names others.
CLASS_NAMES: Mapping[str, Names] = {
    "": Names(),
    **dict.fromkeys(
        ("Bert", "ConvBert", "DistilBert", "Electra", "LayoutLM", "Lxmert", "MobileBert"), _BERT
    ),
    **dict.fromkeys(("RetriBert", "RoFormer", "Splinter", "SqueezeBert"), _BERT),
    **dict.fromkeys(("Bart", "LED", "Longformer", "Mvp", "Roberta"), _FAIRSEQ),
    **dict.fromkeys(("Barthez", "Blenderbot", "XLMRoberta"), _FAIRSEQ),
    **dict.fromkeys(("Albert", "RemBert"), _ALBERT),
    **dict.fromkeys(("Deberta", "DebertaV2"), _DEBERTA),
    **dict.fromkeys(("CodeGen", "GPT2", "Whisper"), _GPT2),
    **dict.fromkeys(("MT5", "T5"), _T5),
    **dict.fromkeys(("Qwen2", "Qwen3_5"), _QWEN2),
    "BigBird": replace(_FAIRSEQ, sep="[SEP]", cls="[CLS]", mask="[MASK]"),
    "Camembert": replace(_FAIRSEQ, more=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")),
    "CLIP": replace(_GPT2, bos="<|startoftext|>", pad="<|endoftext|>"),
    "CodeLlama": replace(
        _LLAMA, more=("\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>", "\u2581<EOT>", "<FILL_ME>")
    ),
    "Cohere": Names(
        bos="<BOS_TOKEN>",
        eos="<|END_OF_TURN_TOKEN|>",
        unk="<UNK>",
        sep="<SEP>",
        pad="<PAD>",
        cls="<CLS>",
        mask="<MASK_TOKEN>",
    ),
    "Gemma": Names(bos="<bos>", eos="<eos>", unk="<unk>", pad="<pad>", mask="<mask>"),
    "GPTNeoX": replace(_GPT2, pad="<|padding|>"),
    "Llama": _LLAMA,
    "MPNet": replace(_FAIRSEQ, unk="[UNK]"),
    **dict.fromkeys(("MBart", "Nllb"), _FAIRSEQ),
    "M2M100": Names(bos="<s>", eos="</s>", unk="<unk>", sep="</s>", pad="<pad>"),
    "MBart50": replace(_FAIRSEQ, bos=None),
    "Marian": _T5,
    "Pegasus": Names(eos="</s>", unk="<unk>", pad="<pad>", mask="<mask_2>"),
}
# Classes whose settings decide how a BertNormalizer normalises.
BERT_LIKE = frozenset(name for name, names in CLASS_NAMES.items() if names is _BERT) | {"MPNet"}
# Classes whose setting decides whether byte-level BPE puts a space before a text.
BYTE_LEVEL = frozenset(
    {
        *("Bart", "Blenderbot", "CodeGen", "Cohere", "Deberta", "GPT2", "GPTNeoX", "LED"),
        *("Longformer", "Mvp", "Qwen2", "Roberta", "Whisper"),
    }
)
# Classes that transformers 4 has put bos and eos around a text where the settings say so, whatever
# the tokenizer.json says: whether bos is added where they say nothing.
ADDS_ENDS: Mapping[str, bool] = {
    "CodeLlama": True,
    "Cohere": True,
    "GPTNeoX": False,
    "Gemma": True,
    "Llama": True,
}
# Classes of ADDS_ENDS that put nothing else around a text.
ONLY_ENDS = frozenset({"GPTNeoX"})

# The class of a type of models where no file names one.
_OF_MODELS: Mapping[str, str] = {
    "albert": "Albert",
    "bart": "Bart",
    "bert": "Bert",
    "blenderbot": "Blenderbot",
    "camembert": "Camembert",
    "deberta": "Deberta",
    "deberta-v2": "DebertaV2",
    "distilbert": "Bert",
    "electra": "Bert",
    "gemma": "Gemma",
    "gemma2": "Gemma",
    "gemma3": "Gemma",
    "gemma3_text": "Gemma",
    "gpt2": "GPT2",
    "gpt_neox": "GPTNeoX",
    "gptj": "GPT2",
    "m2m_100": "M2M100",
    "marian": "Marian",
    "mbart": "MBart",
    "mpnet": "MPNet",
    "mt5": "T5",
    "nomic_bert": "Bert",
    "opt": "GPT2",
    "pegasus": "Pegasus",
    "qwen2": "Qwen2",
    "qwen3": "Qwen2",
    "roberta": "Roberta",
    "t5": "T5",
    "umt5": "T5",
    "xlm-roberta": "XLMRoberta",
    "zaya": "Gemma",
}
# Types of models whose tokenizer.json is read by no class of a family, whatever the files name.
_WITHOUT = ("mistral", "modernbert", "modernbert-decoder", "phi3", "xlm-roberta-xl")
# Types of models that have their own class, whatever the files name.
_OWN = ("qwen2",)


def class_of(model_type: object) -> str:
    """The class of a type of models where no file names one; "": there is none."""
    return _OF_MODELS.get(model_type, "") if isinstance(model_type, str) else ""


def class_name(value: Any) -> str:
    """The name of a class as the tables here have it; "" for one that says nothing about the
    contents of the files."""
    name = str(value or "").removesuffix("Fast").removesuffix("Tokenizer")
    return "" if name in _GENERIC else name


def declared_class(settings: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """The class that tokenizer_config.json, otherwise config.json, names; None: neither names
    one."""
    value = settings.get("tokenizer_class") or config.get("tokenizer_class")
    return class_name(value) if value else None


def effective_class(declared: str | None, model_type: object, byte_level: bool) -> str:
    """The class by which transformers reads a tokenizer.json.

    byte_level: whether that file is of byte-level BPE, which the class of Llama is not.
    """
    kind = model_type if isinstance(model_type, str) else ""
    if kind in _WITHOUT:
        return ""
    if declared is None or kind in _OWN:
        return _OF_MODELS.get(kind, "")
    if declared == "Llama" and byte_level:
        return ""
    return declared if declared in CLASS_NAMES else ""
