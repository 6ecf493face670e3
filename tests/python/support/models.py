"""Small random models in the converted form (docs/developer/spec.md, docs/developer/tensors.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from packhorse_weights import Tensor
from packhorse_weights.formats.safetensors import write_safetensors
from packhorse_weights.layout import weight_shapes

Spec = dict[str, Any]
Tensors = dict[str, npt.NDArray[Any]]


def tiny_spec(**changes: Any) -> Spec:
    """A valid spec with top-level fields replaced; None removes a field."""
    spec: Spec = {
        "format": 1,
        "family": "random",
        "vocab_size": 50,
        "hidden_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": 80,
        "type_vocab_size": 2,
        "positions": {"kind": "learned", "count": 300, "offset": 0},
        "norm": {"kind": "layer", "placement": "post", "eps": 1e-12},
        "attention": {"mask": "bidirectional"},
        "ffn": {"kind": "plain", "activation": "gelu"},
        "heads": {"pooler": {"activation": "tanh"}},
        "embedding": {"pooling": "mean", "normalize": True},
        **changes,
    }
    return {name: value for name, value in spec.items() if value is not None}


def decoder_spec(**changes: Any) -> Spec:
    """A spec of a model that generates: causal, with RoPE and a tied head."""
    spec: Spec = {
        "type_vocab_size": None,
        "max_seqlen": 1000,
        "positions": {"kind": "none"},
        "attention": {"mask": "causal", "rope": {"theta": 10000}},
        "heads": {"lm": {"tied": True}},
        "embedding": {"pooling": "last", "normalize": False},
        **changes,
    }
    return tiny_spec(**spec)


PADDING = 7  # a token that random_sequences has, too

_NORM = {"kind": "layer", "placement": "pre", "eps": 1e-6}
_MASK = {"mask": "bidirectional"}
_ROPE = {"theta": 1000.0}

_COMPRESSED = {"kind": "compressed", "depthwise_width": 2, "grouped_width": 2}

_DISENTANGLED = {
    "kind": "disentangled",
    "buckets": 64,
    "max_distance": 100,
    "content_to_position": True,
    "position_to_content": True,
    "shared_projections": True,
    "norm": True,
}


def classifier(input: str, labels: int, **fields: Any) -> Spec:
    """`heads` with a classifier beside the pooler."""
    names = [f"label {i}" for i in range(labels)]
    return {
        "heads": {
            "pooler": {"activation": "tanh"},
            "classifier": {"input": input, "labels": names, **fields},
        }
    }


# Specs with more than a BERT has: changes to `tiny_spec`.
SPEC_OPTIONS: dict[str, Spec] = {
    "narrow-embeddings": {"embedding_size": 21},
    "wide-embeddings": {"embedding_size": 70},
    "shared-layers": {"num_layers": 5, "layer_weights": [0, 0, 1, 0, 1]},
    "no-positions": {"positions": {"kind": "none"}, "max_seqlen": 300},
    "pre-norm": {"norm": _NORM},
    "pre-norm-without-biases": {"norm": {**_NORM, "bias": False, "first_attention": False}},
    "rms-norm": {"norm": {"kind": "rms", "placement": "post", "eps": 1e-6}},
    "rms-pre-norm": {"norm": {**_NORM, "kind": "rms", "embeddings": False}},
    "norms-before-and-after": {
        "embedding_scale": 1.7,
        "norm": {**_NORM, "kind": "rms", "placement": "both", "gamma_offset": 0.5},
        "attention": {**_MASK, "qk_norm": True, "scale": 0.2},
    },
    "parallel-blocks": {"norm": {**_NORM, "placement": "parallel"}},
    "parallel-blocks-of-one-norm": {
        "norm": {**_NORM, "placement": "parallel", "shared": True, "embeddings": False}
    },
    "positions-after-a-projection": {
        "embedding_size": 21,
        "embedding_bias": False,
        "positions": {"kind": "learned", "count": 302, "offset": 2, "after_projection": True},
    },
    "no-biases": {
        "attention": {**_MASK, "qkv_bias": False, "output_bias": False},
        "ffn": {"kind": "plain", "activation": "gelu", "up_bias": False, "down_bias": False},
    },
    "causal": {"attention": {"mask": "causal"}},
    "windows": {
        "num_layers": 4,
        "attention": {**_MASK, "local": {"window": 3, "layers": [0, 2, 3]}},
    },
    "causal-window": {"attention": {"mask": "causal", "local": {"window": 0, "layers": [1]}}},
    "rope": {"attention": {**_MASK, "rope": _ROPE}},
    "rope-in-part": {"head_dim": 11, "attention": {**_MASK, "rope": {**_ROPE, "dims": 6}}},
    "rope-of-two-kinds": {
        "head_dim": 34,
        "attention": {
            **_MASK,
            "rope": {**_ROPE, "local_theta": 30.0, "factor": 1.5},
            "local": {"window": 20, "layers": [1]},
        },
    },
    "rope-of-two-factors": {
        "attention": {
            **_MASK,
            "rope": {**_ROPE, "factor": 4.0, "local_factor": 1.0},
            "local": {"window": 20, "layers": [1]},
        },
    },
    "rope-of-neighbouring-columns": {
        "head_dim": 11,
        "attention": {
            **_MASK,
            "qk_norm": True,
            "rope": {**_ROPE, "dims": 6, "interleaved": True},
        },
    },
    "rope-of-one-layer": {"attention": {**_MASK, "rope": {**_ROPE, "layers": [1]}}},
    "rope-of-given-frequencies": {
        "attention": {
            **_MASK,
            "rope": {"frequencies": [1, 0.5, 0.3, 0.01, 1e-3, 1e-5], "attention_factor": 1.3},
        }
    },
    "qk-norm": {"head_dim": 10, "num_kv_heads": 2, "attention": {**_MASK, "qk_norm": True}},
    "qk-norm-and-rope": {"attention": {"mask": "causal", "qk_norm": True, "rope": _ROPE}},
    "alibi": {
        "num_heads": 3,
        "positions": {"kind": "none"},
        "max_seqlen": 300,
        "attention": {**_MASK, "score_term": {"kind": "alibi"}},
    },
    "disentangled": {"head_dim": 10, "attention": {**_MASK, "score_term": _DISENTANGLED}},
    "disentangled-of-each-distance": {
        "attention": {
            **_MASK,
            "score_term": {
                **_DISENTANGLED,
                "buckets": 0,
                "max_distance": 150,
                "shared_projections": False,
                "norm": False,
            },
        },
    },
    "content-to-position-alone": {
        "num_heads": 1,
        "attention": {
            "mask": "causal",
            "score_term": {**_DISENTANGLED, "position_to_content": False, "max_distance": 1000},
        },
    },
    "position-to-content-alone": {
        "attention": {
            **_MASK,
            "local": {"window": 70, "layers": [0]},
            "score_term": {**_DISENTANGLED, "content_to_position": False, "buckets": 4},
        },
    },
    "compressed": {
        "num_kv_heads": 2,
        "attention": {**_MASK, **_COMPRESSED, "rope": {**_ROPE, "dims": 6}},
    },
    "compressed-and-causal": {
        "hidden_size": 40,
        "num_kv_heads": 1,
        "head_dim": 18,
        "attention": {
            **_COMPRESSED,
            "mask": "causal",
            "qkv_bias": False,
            "depthwise_width": 3,
            "local": {"window": 9, "layers": [1]},
            "rope": {**_ROPE, "local_theta": 30.0},
        },
    },
    "compressed-of-tokens-alone": {
        "attention": {**_MASK, **_COMPRESSED, "depthwise_width": 1, "grouped_width": 1},
    },
    "no-bias-of-keys": {"attention": {**_MASK, "key_bias": False}},
    "convolution": {"convolution": {"width": 3, "activation": "tanh"}},
    "wide-convolution": {"num_layers": 1, "convolution": {"width": 5, "activation": "gelu"}},
    "classifier-of-pooler": classifier("pooler", 3),
    "classifier-of-first-tokens": classifier("cls", 1, dense={"activation": "tanh"}),
    "classifier-of-means": {
        **classifier("mean", 45, dense={"activation": "silu", "bias": False, "norm": True}),
        "norm": {**_NORM, "bias": False},
    },
    "classifier-of-last-tokens": classifier("last", 3, bias=False),
    "classifier-of-last-tokens-that-are-no-padding": classifier("last", 3, padding_id=PADDING),
    "positions-that-skip-padding": {
        "positions": {"kind": "learned", "count": 302, "offset": 2, "padding_id": PADDING}
    },
    "classifier-of-tokens": classifier("tokens", 17),
    "classifier-of-tokens-with-a-layer": classifier(
        "tokens", 2, dense={"activation": "gelu", "norm": True}
    ),
    "buckets": {
        "attention": {
            **_MASK,
            "score_term": {"kind": "bucketed", "buckets": 12, "max_distance": 40},
        }
    },
}

_SPARSE = {"heads": {"masked_lm": {"activation": "gelu", "sparse": True}}}


def sparse(**options: Any) -> Spec:
    return {"heads": {"masked_lm": {**_SPARSE["heads"]["masked_lm"], **options}}}


# Heads beside classifiers: changes to `tiny_spec`.
HEAD_OPTIONS: dict[str, Spec] = {
    "masked-lm": {"heads": {"masked_lm": {"activation": "tanh"}}},
    "masked-lm-of-narrow-embeddings": {
        "embedding_size": 24,
        "heads": {"masked_lm": {"activation": "gelu", "dense_bias": False, "decoder_bias": False}},
    },
    "lm": {"heads": {"lm": {}}},
    "tied-lm": {"heads": {"lm": {"tied": True, "bias": True, "scale": 0.7, "soft_cap": 3.0}}},
    "scaled-lm": {"embedding_scale": 0.3, "heads": {"lm": {"tied": True, "scale": 0.25}}},
    "lm-of-narrow-embeddings": {
        "embedding_size": 24,
        "heads": {"lm": {"tied": True, "projection": True}},
    },
    "sparse": _SPARSE,
    "sparse-of-many": {**_SPARSE, "vocab_size": 1001, "norm": {**_NORM, "bias": False}},
    "sparse-sum": sparse(sparse_pooling="sum"),
    "sparse-sum-of-logs-of-logs": {
        **sparse(sparse_pooling="sum", sparse_logs=2),
        "vocab_size": 401,
    },
    "sparse-logs-of-logs": sparse(sparse_pooling="max", sparse_logs=2),
    "token-weights": {"heads": {"token_weights": True}},
    "vectors": {"heads": {"vectors": {"size": 20}}},
    "long-vectors": {"heads": {"vectors": {"size": 130, "bias": True, "normalize": False}}},
    "vectors-of-layers": {
        "hidden_size": 40,
        "num_heads": 4,
        "heads": {
            "vectors": {
                "dense": [{"size": 40, "residual": True}, {"size": 70, "activation": "relu"}],
                "size": 21,
                "residual": True,
                "activation": "tanh",
            }
        },
    },
    "three-outputs": {"heads": {"token_weights": True, "vectors": {"size": 48, "bias": True}}},
    "dense-after-pooling": {
        "embedding": {
            "pooling": "mean",
            "dense": [{"size": 21, "activation": "tanh"}, {"size": 13, "bias": False}],
            "normalize": True,
        }
    },
    "several-poolings": {
        "embedding": {"pooling": ["weighted_mean", "cls", "max"], "normalize": True},
    },
    "several-poolings-as-they-are": {
        "embedding": {"pooling": ["last", "mean_sqrt"], "normalize": False},
    },
    "residual-after-pooling": {
        "embedding": {
            "pooling": "weighted_mean",
            "dense": [
                {"size": 48, "activation": "tanh", "residual": True},
                {"size": 21, "activation": "relu", "residual": True},
                {"size": 21, "bias": False, "residual": True},
            ],
            "normalize": True,
        }
    },
    "residual-of-several-poolings": {
        "hidden_size": 40,
        "num_heads": 4,
        "embedding": {
            "pooling": ["mean", "max"],
            "dense": [{"size": 80, "residual": True}, {"size": 40, "residual": True}],
            "normalize": False,
        },
    },
    "wide-after-pooling": {
        "embedding": {
            "pooling": "last",
            "dense": [{"size": 100, "activation": "relu"}],
            "normalize": False,
        }
    },
}


def with_defaults(spec: Mapping[str, Any]) -> Spec:
    """The spec with every optional size filled in."""
    if "stacks" in spec:
        return {"heads": {}, **spec}
    sizes = {}
    if "num_heads" in spec:
        sizes["num_kv_heads"] = spec["num_heads"]
        sizes["head_dim"] = spec["hidden_size"] // spec["num_heads"]
    return {**sizes, "type_vocab_size": 0, "heads": {}, **spec}


def random_tensors(spec: Mapping[str, Any], seed: int = 0) -> Tensors:
    """Weights that keep activations near 1, with attention far from uniform."""
    random = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, shape in weight_shapes(with_defaults(spec)).items():
        if name == "relative_embeddings":
            values = random.normal(0, 1, shape)
        elif "norm." in name:
            values = random.normal(1.0 if name.endswith("weight") else 0.0, 0.2, shape)
        elif name.endswith(("scale", "shift", "balance")):
            values = random.normal(1.0 if name.endswith("scale") else 0.0, 0.2, shape)
        elif ".experts." in name:
            values = random.normal(0, 1.5 * float(shape[-1]) ** -0.5, shape)
        elif name in ("embeddings.word", "embeddings.position", "embeddings.type"):
            values = random.normal(0, 1, shape)
        else:
            values = random.normal(0, 1.5 * float(np.prod(shape[1:])) ** -0.5, shape)
        tensors[name] = values.astype(np.float32)
    return tensors


def write_model(folder: Path, spec: Mapping[str, Any], tensors: Tensors | None = None) -> Path:
    """Writes a converted folder; without `tensors`, random ones."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "packhorse.json").write_text(json.dumps(spec))
    values = random_tensors(spec) if tensors is None else tensors
    write_safetensors(
        folder / "model.safetensors",
        {name: Tensor(array, str(array.dtype)) for name, array in values.items()},
    )
    return folder


def random_sequences(
    lengths: list[int], vocab_size: int = 50, seed: int = 0
) -> list[npt.NDArray[np.int32]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, vocab_size, n).astype(np.int32) for n in lengths]
