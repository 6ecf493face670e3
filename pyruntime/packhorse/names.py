"""Literal types of arguments whose possible names are known beforehand, for type checkers."""

from typing import Literal

# Dtypes of `Session.load` and, without "stored", operators.
Dtype = Literal["float32", "bfloat16", "float16", "int8", "float8", "stored"]
# Names that people write for these; "auto" is None.
AskedDtype = Dtype | Literal["auto", "fp32", "float", "fp16", "half", "bf16"]
CacheDtype = Literal["float8"]  # keys and values, where unlike activations
AttentionAlgorithm = Literal["auto", "hopper", "online", "short", "grouped", "bytetransformer"]
Pooling = Literal["cls", "mean", "max", "last", "mean_sqrt", "weighted_mean"]
Tower = Literal["vision", "text"]  # half of a model of images and texts
OutputName = Literal[
    "hidden",
    "embedding",
    "pooled",
    "logits",
    "token_weights",
    "vectors",
    "sparse",
    "predictions",
]  # for `EncoderSession.run`
PairTruncation = Literal["longest_first", "only_second"]  # for `EncoderSession.score`
Truncation = Literal["longest_first", "only_first", "only_second"]  # for texts and pairs
EmbeddingDtype = Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]  # for `embed`
ScoreActivation = Literal["softmax", "sigmoid", "none"]  # turns logits into scores of labels, pairs
AggregationStrategy = Literal["none", "simple", "first", "average", "max"]  # for entities
Activation = Literal["none", "gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid"]  # for `ops`
