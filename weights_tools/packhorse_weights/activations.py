"""The names of activations in configs and in the spec."""

from collections.abc import Mapping

# `hidden_act` of transformers -> `ffn.activation` of the spec. gelu_new, gelu_fast and their
# relatives are one function, the tanh approximation, written differently.
ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
