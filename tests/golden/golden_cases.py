"""The tiny models that make_golden.py makes: what differs from its defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LENGTHS = (17, 1, 64, 2, 100, 5, 31)


@dataclass
class Case:
    """One tiny model: what differs from two layers of width 32 (DEFAULTS)."""

    name: str
    model_type: str = "bert"
    config: dict[str, Any] = field(default_factory=dict)
    # safetensors, sharded, old_bin; masked_lm and causal_lm have a prefix, and no pooler
    layout: str = "safetensors"
    pooler: bool | None = True  # None: the model type knows none
    bfloat16: bool = False  # weights as stored; computed in float32 all the same
    pooling: str | None = None  # None: no sentence-transformers files
    normalize: bool = False
    lengths: tuple[int, ...] = LENGTHS
    pooling_as_text: bool = False  # the newer form of the Pooling config
    head: str | None = None  # sequence, tokens, answers: what the model is for, with its labels
    # predictions, splade, dense, colbert, pylate, bge-m3: what golden_parts.py adds
    part: str | None = None


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


CASES: tuple[Case, ...] = (
    Case("bert-gelu", pooling="mean", normalize=True),
    Case("bert-gelu-new", config={"hidden_act": "gelu_new"}, pooling="cls", pooling_as_text=True),
    Case("bert-relu", config={"hidden_act": "relu"}, pooling="max"),
    Case("bert-silu", config={"hidden_act": "silu"}, pooling="last", normalize=True),
    Case(
        "bert-312",
        config={
            "hidden_size": 312,
            "num_attention_heads": 12,
            "num_hidden_layers": 1,
            "intermediate_size": 96,
        },
        pooler=False,
        bfloat16=True,
        pooling="mean_sqrt",
        lengths=(17, 1, 33, 2),
    ),
    Case(
        "bert-odd",
        config={"hidden_size": 40, "num_attention_heads": 5, "intermediate_size": 53},
    ),
    Case("bert-no-pooler", pooler=False),
    Case("bert-sharded", layout="sharded", pooling="mean"),
    Case("bert-old-bin", layout="old_bin"),
    Case("roberta", "roberta", pooling="mean"),
    Case("xlm-roberta", "xlm-roberta", pooling="mean", normalize=True),
    Case("camembert", "camembert", layout="masked_lm"),
    Case("distilbert", "distilbert", pooler=None, pooling="mean"),
    Case(
        "distilbert-odd",
        "distilbert",
        config={"dim": 40, "n_heads": 5, "hidden_dim": 53, "activation": "relu"},
        pooler=None,
        layout="masked_lm",
    ),
    Case("electra-small", "electra", config={"embedding_size": 24}, pooler=None),
    Case(
        "electra-base",
        "electra",
        config={"embedding_size": 32, "layer_norm_eps": 1e-5, "hidden_act": "relu"},
        pooler=None,
        layout="masked_lm",
    ),
    Case("albert", "albert", config={"embedding_size": 16, "num_hidden_layers": 3}),
    Case(
        "albert-groups",
        "albert",
        config={
            "embedding_size": 21,
            "hidden_size": 40,
            "num_attention_heads": 5,
            "num_hidden_layers": 5,
            "num_hidden_groups": 2,
            "hidden_act": "gelu",
        },
        pooling="mean",
        normalize=True,
    ),
    Case(
        "mpnet",
        "mpnet",
        config={"max_position_embeddings": 304},
        pooling="mean",
        normalize=True,
        lengths=(17, 1, 300, 2, 129),
    ),
    Case(
        "mpnet-odd",
        "mpnet",
        config={"hidden_size": 42, "num_attention_heads": 3, "intermediate_size": 51},
        pooler=False,
    ),
    Case(
        "modernbert",
        "modernbert",
        config={"num_hidden_layers": 5, "local_attention": 24, "layer_types": None},
        pooler=None,
        pooling="cls",
    ),
    Case(
        "modernbert-odd",
        "modernbert",
        config={
            "hidden_size": 36,
            "num_attention_heads": 3,
            "intermediate_size": 39,
            "num_hidden_layers": 3,
            "hidden_activation": "silu",
            "local_attention": 2,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
        },
        pooler=None,
        layout="masked_lm",
    ),
    Case("nomic-bert", "nomic_bert", pooler=None, pooling="mean", normalize=True),
    Case(
        "nomic-bert-odd",
        "nomic_bert",
        config={
            "hidden_size": 42,
            "num_attention_heads": 3,
            "intermediate_size": 51,
            "hidden_act": "gelu_new",
        },
    ),
    Case("gte", "gte", pooler=None, pooling="cls"),
    Case(
        "gte-odd",
        "gte",
        config={
            "type_vocab_size": 2,
            "hidden_size": 40,
            "num_attention_heads": 5,
            "intermediate_size": 70,
            "hidden_act": "relu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        },
        layout="masked_lm",
    ),
    Case("qwen2", "qwen2", config={"num_key_value_heads": 2}, pooler=None, pooling="last"),
    Case(
        "qwen2-window",
        "qwen2",
        config={
            "num_key_value_heads": 1,
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
        layout="causal_lm",
        pooler=None,
    ),
    Case(
        "qwen3",
        "qwen3",
        config={"num_key_value_heads": 2, "head_dim": 24},
        pooler=None,
        pooling="last",
        normalize=True,
    ),
    Case(
        "qwen3-odd",
        "qwen3",
        config={
            "hidden_size": 35,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "head_dim": 10,
            "intermediate_size": 47,
            "attention_bias": True,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
        pooler=None,
        layout="causal_lm",
    ),
    Case("llama", "llama", config={"attention_bias": True, "mlp_bias": True}, pooler=None),
    Case(
        "llama-grouped",
        "llama",
        config={"num_key_value_heads": 2, "head_dim": 12, "hidden_act": "gelu"},
        pooler=None,
        pooling="mean",
    ),
    Case(
        "llama-linear",
        "llama",
        config={"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
        pooler=None,
    ),
    Case(
        "llama-llama3",
        "llama",
        config={
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        pooler=None,
    ),
    Case(
        "qwen2-yarn",
        "qwen2",
        config={
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 50,
                "beta_fast": 8,
            },
        },
        pooler=None,
    ),
    Case(
        "mistral-longrope",
        "mistral",
        config={
            "num_key_value_heads": 2,
            "sliding_window": None,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "short_factor": [1.0, 1.1, 1.5, 3.0],
                "long_factor": [1.0, 2.0, 4.0, 8.0],
            },
        },
        pooler=None,
    ),
    Case(
        "mistral",
        "mistral",
        config={"num_key_value_heads": 2, "sliding_window": 16},
        pooler=None,
        pooling="last",
        normalize=True,
    ),
    Case(
        "deberta",
        "deberta",
        config={
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_biased_input": False,
            "max_position_embeddings": 120,
        },
        pooler=None,
    ),
    Case(
        "deberta-odd",
        "deberta",
        config={
            "relative_attention": True,
            "max_relative_positions": 30,
            "pos_att_type": "p2c",
            "type_vocab_size": 2,
            "hidden_size": 42,
            "num_attention_heads": 3,
            "hidden_act": "relu",
        },
        pooler=None,
        layout="masked_lm",
    ),
    Case(
        "deberta-v3",
        "deberta-v2",
        config={
            "relative_attention": True,
            "position_buckets": 32,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "max_position_embeddings": 310,
        },
        pooler=None,
        pooling="mean",
        lengths=(17, 1, 300, 2, 129, 64),
    ),
    Case(
        "deberta-v2-own-projections",
        "deberta-v2",
        config={
            "relative_attention": True,
            "max_relative_positions": 40,
            "pos_att_type": "c2p|p2c",
            "type_vocab_size": 2,
            "hidden_size": 42,
            "num_attention_heads": 3,
        },
        pooler=None,
        layout="masked_lm",
    ),
    Case(
        "deberta-v2-c2p",
        "deberta-v2",
        config={
            "relative_attention": True,
            "position_buckets": 6,
            "max_relative_positions": 20,
            "pos_att_type": ["c2p"],
            "share_att_key": True,
            "position_biased_input": False,
        },
        pooler=None,
    ),
    Case(
        "deberta-v2-convolution",
        "deberta-v2",
        config={
            "relative_attention": True,
            "position_buckets": 64,
            "max_relative_positions": 90,
            "pos_att_type": ["p2c"],
            "conv_kernel_size": 3,
            "conv_act": "gelu",
            "position_biased_input": False,
            "num_attention_heads": 1,
        },
        pooler=None,
    ),
)
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
CASES += (
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
)


def masked_lm(
    name: str, model_type: str, config: dict[str, Any] | None = None, part: str = "predictions"
) -> Case:
    """One layer and the head over the vocabulary."""
    depth = {"n_layers": 1} if model_type == "distilbert" else {"num_hidden_layers": 1}
    fields = depth | (config or {})
    lengths = (17, 1, 40, 2)
    return Case(name, model_type, fields, "masked_lm", pooler=None, lengths=lengths, part=part)


_OWN_DECODER = {"tie_word_embeddings": False}
CASES += (
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
    Case("bert-dense", pooler=False, lengths=(17, 1, 40, 2), part="dense"),
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
)

# Two layers of width 32, under the names that most configs use.
DEFAULTS = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 120,
}
_ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
DEFAULTS_OF: dict[str, dict[str, Any]] = {
    "bert": {"type_vocab_size": 2, "pad_token_id": 0, "layer_norm_eps": 1e-12},
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "mpnet": {"layer_norm_eps": 1e-5},
    "nomic_bert": {"pad_token_id": 0},
    "modernbert": {
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 1,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
}
# Of which these are named differently in the config.
RENAMED = {
    "distilbert": {
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
    }
}
