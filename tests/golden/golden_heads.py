"""The tiny models with heads: see golden_cases.py."""

from __future__ import annotations

from typing import Any

from golden_cases import Case

_THREE = ("negative", "neutral", "positive")
_ONE = ("relevance",)
_ENTITIES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-MISC", "I-MISC")
_MANY = tuple(f"class {i}" for i in range(45))
_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "position_buckets": 16,
    "max_relative_positions": 60,
    "position_biased_input": False,
    "pooler_hidden_size": 32,
}
_FIRST_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p"], "pooler_hidden_size": 32}
_ODD = {"hidden_size": 40, "num_attention_heads": 5, "intermediate_size": 53}
_WINDOWS = {"layer_types": ["sliding_attention"], "local_attention": 24}
_OWN_DECODER = {"tie_word_embeddings": False}


def classifier(
    name: str,
    model_type: str,
    head: str,
    config: dict[str, Any] | None = None,
    labels: tuple[str, ...] = ("yes", "no"),
) -> Case:
    """One layer and a head of transformers on it."""
    names = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}}
    depth = {"n_layers": 1} if model_type == "distilbert" else {"num_hidden_layers": 1}
    fields = depth | names | (config or {})
    return Case(name, model_type, config=fields, head=head, lengths=(17, 1, 40, 2))


def masked_lm(
    name: str, model_type: str, config: dict[str, Any] | None = None, part: str = "predictions"
) -> Case:
    """One layer and the head over the vocabulary."""
    depth = {"n_layers": 1} if model_type == "distilbert" else {"num_hidden_layers": 1}
    fields = depth | (config or {})
    lengths = (17, 1, 40, 2)
    return Case(name, model_type, fields, "masked_lm", pooler=None, lengths=lengths, part=part)


MODELS_WITH_HEADS: tuple[Case, ...] = (
    classifier("bert-sequence", "bert", "sequence", _ODD, _THREE),
    classifier(
        "bert-reranker",
        "bert",
        "sequence",
        {
            "sentence_transformers": {
                "activation_fn": "torch.nn.modules.linear.Identity",
                "version": "5.0.0",
            }
        },
        _ONE,
    ),
    classifier("bert-tokens", "bert", "tokens", _ODD, _ENTITIES),
    classifier("bert-answers", "bert", "answers"),
    classifier("roberta-sequence", "roberta", "sequence", labels=_MANY),
    classifier("roberta-tokens", "roberta", "tokens", labels=_ENTITIES),
    classifier("roberta-answers", "roberta", "answers"),
    classifier("xlm-roberta-reranker", "xlm-roberta", "sequence", _ODD, _ONE),
    classifier("camembert-tokens", "camembert", "tokens", labels=_ENTITIES),
    classifier("distilbert-sequence", "distilbert", "sequence"),
    classifier("distilbert-tokens", "distilbert", "tokens", labels=_ENTITIES),
    classifier("distilbert-answers", "distilbert", "answers"),
    classifier("electra-sequence", "electra", "sequence", {"embedding_size": 24}, _THREE),
    classifier("electra-tokens", "electra", "tokens", {"embedding_size": 32}, _THREE),
    classifier("albert-sequence", "albert", "sequence", {"embedding_size": 16}, _THREE),
    classifier("albert-answers", "albert", "answers", {"embedding_size": 16}),
    classifier("mpnet-sequence", "mpnet", "sequence", labels=_ONE),
    classifier("mpnet-tokens", "mpnet", "tokens", labels=_THREE),
    classifier("deberta-sequence", "deberta", "sequence", _FIRST_DEBERTA, _THREE),
    classifier(
        "deberta-v3-sequence",
        "deberta-v2",
        "sequence",
        _DEBERTA | {"pooler_hidden_act": "tanh"},
        _THREE,
    ),
    classifier("deberta-v3-tokens", "deberta-v2", "tokens", _DEBERTA, _ENTITIES),
    classifier("modernbert-sequence", "modernbert", "sequence", _WINDOWS, _THREE),
    classifier(
        "modernbert-reranker",
        "modernbert",
        "sequence",
        _WINDOWS
        | {
            "classifier_pooling": "mean",
            "classifier_activation": "silu",
            "classifier_bias": True,
            "norm_bias": True,
        },
        _ONE,
    ),
    classifier("modernbert-tokens", "modernbert", "tokens", _WINDOWS, _ENTITIES),
    classifier("modernbert-answers", "modernbert", "answers", _WINDOWS),
    classifier("nomic-bert-sequence", "nomic_bert", "sequence", labels=_THREE),
    classifier("gte-reranker", "gte", "sequence", labels=_ONE),
    classifier("gte-tokens", "gte", "tokens", labels=_THREE),
    classifier("qwen2-tokens", "qwen2", "tokens", {"num_key_value_heads": 2}, _THREE),
    classifier(
        "qwen3-reranker", "qwen3", "sequence", {"num_key_value_heads": 2, "head_dim": 8}, _ONE
    ),
    classifier("mistral-sequence", "mistral", "sequence", {"num_key_value_heads": 2}, _THREE),
    masked_lm("bert-predictions", "bert", _ODD | {"hidden_act": "relu"}),
    masked_lm("bert-own-decoder", "bert", _OWN_DECODER | {"vocab_size": 101}),
    masked_lm("roberta-predictions", "roberta", {"hidden_act": "relu"}),
    masked_lm("distilbert-predictions", "distilbert", {"activation": "relu"}),
    masked_lm("electra-predictions", "electra", {"embedding_size": 24}),
    masked_lm("albert-predictions", "albert", {"embedding_size": 16}),
    masked_lm("mpnet-predictions", "mpnet"),
    masked_lm("modernbert-predictions", "modernbert", _WINDOWS),
    masked_lm(
        "modernbert-own-decoder",
        "modernbert",
        _WINDOWS | _OWN_DECODER | {"classifier_bias": True, "decoder_bias": False},
    ),
    masked_lm("nomic-bert-predictions", "nomic_bert"),
    masked_lm("gte-predictions", "gte"),
    masked_lm("deberta-v3-predictions", "deberta-v2", _DEBERTA),
    masked_lm("bert-splade", "bert", {"vocab_size": 500}, part="splade"),
    masked_lm("distilbert-splade", "distilbert", part="splade"),
    masked_lm("bert-splade-sum", "bert", _ODD, part="splade-sum"),
    masked_lm("distilbert-splade-logs", "distilbert", part="splade-logs"),
    Case("bert-dense", pooler=False, lengths=(17, 1, 40, 2), part="dense"),
    Case("bert-poolings", config=_ODD, pooler=False, lengths=(17, 1, 40, 2), part="poolings"),
    Case(
        "modernbert-residual",
        "modernbert",
        _ODD | _WINDOWS | {"num_hidden_layers": 1},
        pooler=None,
        lengths=(17, 1, 40, 2),
        part="residual",
    ),
    Case(
        "bert-residual-vectors",
        config=_ODD,
        pooler=False,
        lengths=(17, 1, 40, 2),
        part="residual-vectors",
    ),
    Case("bert-colbert", pooler=False, lengths=(17, 1, 40, 2), part="colbert"),
    Case(
        "modernbert-colbert",
        "modernbert",
        _WINDOWS | {"num_hidden_layers": 1},
        pooler=None,
        lengths=(17, 1, 40, 2),
        part="pylate",
    ),
    Case(
        "bge-m3",
        "xlm-roberta",
        pooling="cls",
        normalize=True,
        pooler=False,
        lengths=(17, 1, 40, 2),
        part="bge-m3",
    ),
    Case(
        "qwen3-answers",
        "qwen3",
        {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "num_hidden_layers": 1,
            "tie_word_embeddings": True,
        },
        "causal_lm",
        pooler=None,
        lengths=(17, 1, 40, 2),
        part="answers",
    ),
    Case(
        "llama-answers",
        "llama",
        {"num_key_value_heads": 2, "num_hidden_layers": 1},
        "causal_lm",
        pooler=None,
        bfloat16=True,
        lengths=(17, 1, 40, 2),
        part="answers",
    ),
    Case("megatron-bert", "megatron-bert", pooling="cls", lengths=(17, 1, 40, 2)),
    classifier("megatron-bert-sequence", "megatron-bert", "sequence", _ODD),
    masked_lm("megatron-bert-predictions", "megatron-bert"),
    classifier("bert-next-sentence", "bert", "next"),
    classifier("bert-choice", "bert", "choice"),
    classifier("roberta-choice", "roberta", "choice"),
)
