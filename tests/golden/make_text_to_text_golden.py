"""Makes text_to_text/NAME: tiny random models with an encoder and a decoder, and what transformers
makes of them.

    pip install torch transformers      (made with torch 2.13.0, transformers 5.24.0)
    python tests/golden/make_text_to_text_golden.py [NAME ...]

golden.npz beside each model holds, for sources that were each run alone in float32:

    ids, cu_seqlens          the packed sources
    target_ids, target_cu    decoder inputs, the first of each being decoder_start_token_id
    logits                   [sum of targets, vocabulary] after each of these
    greedy, greedy_cu        new tokens of the most probable continuation without a repeated pair
                             (no_repeat_ngram_size 2), NEW of them or up to eos
    beams, beams_cu          the same of beam search: 4 beams, length_penalty 0.8, early_stopping
    beam_scores              sums of log-probabilities / length^length_penalty
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from make_golden import randomise

HERE = Path(__file__).parent / "text_to_text"
VOCABULARY, NEW, BEAMS = 100, 20, 4
SOURCES, TARGETS = (17, 1, 64, 2, 5), (9, 1, 30, 2, 4)
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_FAIRSEQ = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 70,
    "scale_embedding": True,
}
_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("t5", {**_T5, "num_layers": 3, "num_decoder_layers": 2}),
    "t5-gated": ("t5", {**_T5, **_GATED, "d_kv": 12, "num_heads": 3}),
    "mt5": ("mt5", {**_T5, **_GATED, "relative_attention_num_buckets": 12}),
    "umt5": ("umt5", {**_T5, **_GATED, "relative_attention_max_distance": 40}),
    "bart": ("bart", {**_FAIRSEQ, "scale_embedding": False, "forced_bos_token_id": 0}),
    "mbart": ("mbart", {**_FAIRSEQ, "activation_function": "relu", "decoder_attention_heads": 2}),
    "pegasus": ("pegasus", {**_FAIRSEQ, "activation_function": "relu", "d_model": 36}),
    "marian": (
        "marian",
        {**_FAIRSEQ, "encoder_layers": 3, "activation_function": "swish", "pad_token_id": 99},
    ),
    "marian-two-tables": (
        "marian",
        {
            **_FAIRSEQ,
            "activation_function": "gelu",
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": 80,
            "pad_token_id": 79,
            "scale_embedding": False,
        },
    ),
    "m2m-100": ("m2m_100", {**_FAIRSEQ, "forced_bos_token_id": 60, "decoder_ffn_dim": 40}),
    "blenderbot": ("blenderbot", _FAIRSEQ),
}


def tokens_of(config: Any) -> dict[str, int]:
    """Tokens of the model: those of its family, within the small vocabulary."""
    if config.model_type in ("t5", "mt5", "umt5"):
        return {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    pad = config.pad_token_id if config.model_type == "marian" else 1
    start = {"marian": pad, "pegasus": 0, "mbart": 50, "blenderbot": 1}.get(config.model_type, 2)
    pad = 0 if config.model_type == "pegasus" else pad
    eos = {"marian": 0, "pegasus": 1}.get(config.model_type, 2)
    return {"pad_token_id": pad, "eos_token_id": eos, "decoder_start_token_id": start}


def packed(rows: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32)
    return np.concatenate(rows).astype(np.int32), ends


@torch.no_grad()
def make(name: str, random: np.random.Generator) -> None:
    model_type, fields = CASES[name]
    config = transformers.AutoConfig.for_model(model_type, vocab_size=VOCABULARY, **fields)
    for field, value in tokens_of(config).items():
        setattr(config, field, value)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    if name in ("t5-gated", "mt5", "umt5"):  # files of transformers 4, with a layer of its own
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    randomise(model)
    for module in model.modules():
        if hasattr(module, "create_weight"):  # positions of Marian and Pegasus, which are computed
            module.weight.data.copy_(module.create_weight())
    if name.startswith("marian"):
        generator = torch.Generator().manual_seed(7)
        model.final_logits_bias.copy_(
            torch.randn(model.final_logits_bias.shape, generator=generator)
        )
    generation = transformers.GenerationConfig(
        **tokens_of(config), max_length=200, forced_bos_token_id=fields.get("forced_bos_token_id")
    )
    model.generation_config = generation
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    target_size = fields.get("decoder_vocab_size", VOCABULARY)
    low = 5
    sources = [random.integers(low, target_size - 2, n) for n in SOURCES]
    targets = [random.integers(low, target_size - 2, n) for n in TARGETS]
    logits, greedy, beams, scores = [], [], [], []
    for source, target in zip(sources, targets, strict=True):
        target[0] = generation.decoder_start_token_id
        inputs = {"input_ids": torch.tensor(source)[None]}
        found = model(**inputs, decoder_input_ids=torch.tensor(target)[None])
        logits.append(found.logits[0])
        options = {"max_new_tokens": NEW, "do_sample": False, "max_length": None}
        options["no_repeat_ngram_size"] = 2
        ids = model.generate(**inputs, num_beams=1, **options)[0, 1:]
        greedy.append(ids.tolist())
        output = model.generate(
            **inputs,
            num_beams=BEAMS,
            length_penalty=0.8,
            early_stopping=True,
            output_scores=True,
            return_dict_in_generate=True,
            **options,
        )
        beams.append(output.sequences[0, 1:].tolist())
        scores.append(float(output.sequences_scores[0]))
    arrays = {"logits": torch.cat(logits).numpy(), "beam_scores": np.array(scores, np.float32)}
    for key, ends, rows in (
        ("ids", "cu_seqlens", sources),
        ("target_ids", "target_cu", targets),
        ("greedy", "greedy_cu", greedy),
        ("beams", "beams_cu", beams),
    ):
        arrays[key], arrays[ends] = packed(rows)
    np.savez_compressed(folder / "golden.npz", **arrays)
    print(f"{name}: {sum(f.stat().st_size for f in folder.rglob('*'))} bytes, {greedy[0][:8]}")


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for i, name in enumerate(CASES):
        if not sys.argv[1:] or name in sys.argv[1:]:
            make(name, np.random.default_rng(2026 + i))


if __name__ == "__main__":
    main()
