"""Generation by transformers with a static cache and compiled steps, of a Shape's model with random
weights."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import transformers
from torch_decoders import Shape


def make_model(shape: Shape, context: int, dtype: torch.dtype) -> Any:
    sizes: dict[str, Any] = {"vocab_size": shape.vocab, "tie_word_embeddings": True}
    config: Any
    if shape.llama:
        config = transformers.LlamaConfig(
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            max_position_embeddings=context,
            **sizes,
        )
    else:
        config = transformers.GPT2Config(
            n_embd=shape.hidden,
            n_layer=shape.layers,
            n_head=shape.heads,
            n_inner=shape.intermediate,
            n_positions=context,
            **sizes,
        )
    with torch.device("cuda"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


@torch.inference_mode()
def milliseconds(
    shape: Shape, batch: int, context: int, dtype: torch.dtype, rounds: int = 3
) -> float:
    """The time of a step, by the difference of two lengths of output."""
    lengths = (8, 72)
    model = make_model(shape, context + lengths[1], dtype)
    ids = torch.randint(0, shape.vocab, (batch, context), device="cuda")

    def seconds(new_tokens: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            cache_implementation="static",
        )
        torch.cuda.synchronize()
        return time.perf_counter() - start

    for count in lengths:
        seconds(count)  # compiles
    found = [seconds(lengths[1]) - seconds(lengths[0]) for _ in range(rounds)]
    return statistics.median(found) / (lengths[1] - lengths[0]) * 1e3
