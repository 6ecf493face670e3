"""Causal language models against transformers: see tests/golden/make_generation_golden.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from packhorse_weights import CheckpointError, convert, inspect_checkpoint

GOLDEN = Path(__file__).parents[2] / "golden" / "generation"
FOLDERS = sorted(path.parent for path in GOLDEN.glob("*/golden.npz"))
MODELS = [path for path in FOLDERS if path.name != "embedding-gemma"]
MAX_ABS_ERROR = 5e-4
CAPPED = ("gemma2",)  # attention caps its scores, which these sessions do not

Arrays = Mapping[str, Any]


@pytest.fixture(params=[one for one in MODELS if one.name not in CAPPED], ids=lambda one: one.name)
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def read_golden(folder: Path) -> Arrays:
    with np.load(folder / "golden.npz") as arrays:
        return dict(arrays)


def logits_of(model: Path, golden: Arrays, dtype: str = "float32") -> Any:
    tokens = golden["ids"].size
    with packhorse.Session.load(
        model, dtype=dtype, max_tokens=tokens, max_sequences=8, max_predictions=tokens
    ) as session:
        batch = (golden["ids"], golden["cu_seqlens"])
        rows = np.arange(tokens, dtype=np.int32)
        return session.run(batch, outputs=["predictions"], rows=rows).predictions


def test_float32(folder: Path) -> None:
    golden = read_golden(folder)
    error = np.abs(logits_of(folder, golden) - golden["logits"])
    assert error.shape == golden["logits"].shape
    assert error.max() <= MAX_ABS_ERROR


def test_bfloat16(folder: Path) -> None:
    """No further from float32 than twice PyTorch's bfloat16."""
    golden = read_golden(folder)
    error = logits_of(folder, golden, "bfloat16") - golden["logits"]
    largest, rms = golden["bfloat16_error"]
    assert np.abs(error).max() <= 2 * largest
    assert np.sqrt(np.square(error).mean()) <= 2 * rms


def test_greedy_continuations(folder: Path) -> None:
    """Every token is the largest logit after those before it, all of them in one run."""
    golden = read_golden(folder)
    if "continuations" not in golden:
        pytest.skip("no continuations are stored")
    bounds = np.cumsum(golden["prompt_lengths"])[:-1]
    prompts = np.split(golden["prompts"], bounds)
    texts = [
        np.concatenate([prompt, tokens]).astype(np.int32)
        for prompt, tokens in zip(prompts, golden["continuations"], strict=True)
    ]
    with packhorse.Session.load(folder, max_tokens=512, max_predictions=200) as session:
        for prompt, tokens, text in zip(prompts, golden["continuations"], texts, strict=True):
            rows = np.arange(len(prompt) - 1, len(text) - 1, dtype=np.int32)
            found = session.run([text[:-1]], outputs=["predictions"], rows=rows)
            np.testing.assert_array_equal(found.predictions.argmax(1), tokens)


def test_converted_gives_the_same_bits(folder: Path, tmp_path: Path) -> None:
    golden = read_golden(folder)
    converted = logits_of(convert(folder, tmp_path / "converted"), golden)
    np.testing.assert_array_equal(converted, logits_of(folder, golden))


@pytest.mark.parametrize("name", ["gpt2", "gptj", "gemma3"])
def test_int8(name: str, tmp_path: Path) -> None:
    """Groups of weights of 8 bits and inputs of 16 are near float32. Rows that are int8 in a
    folder, which are coarser, take that form, too."""
    golden = read_golden(GOLDEN / name)
    exact = logits_of(GOLDEN / name, golden)
    in_place = np.abs(logits_of(GOLDEN / name, golden, "int8") - exact).mean()
    assert 0 < in_place < 0.01 * np.abs(exact).mean()
    converted = convert(GOLDEN / name, tmp_path / "int8", quantize="int8")
    assert np.abs(logits_of(converted, golden, "int8") - exact).mean() < 0.2


def test_embedding_gemma() -> None:
    golden = read_golden(GOLDEN / "embedding-gemma")
    session = packhorse.Session.load(GOLDEN / "embedding-gemma", max_tokens=512)
    found = session.run((golden["ids"], golden["cu_seqlens"]), outputs=["hidden", "embedding"])
    np.testing.assert_allclose(found.hidden, golden["hidden"], atol=1e-4)
    np.testing.assert_allclose(found.embedding, golden["embedding"], atol=1e-5)


def test_without_predictions_there_is_no_head() -> None:
    """A causal language model is an embedder where it is loaded so, and its head is not loaded."""
    with_head, without = (
        packhorse.plan_memory(
            GOLDEN / "llama", max_tokens=8, max_predictions=rows, kv_tokens=0
        ).weights.bytes
        for rows in (1, 0)
    )
    assert with_head - without >= 67 * 32 * 4
    session = packhorse.Session.load(GOLDEN / "llama", max_tokens=8, kv_tokens=0)
    assert session.run([[1, 2, 3]], outputs=["embedding"]).embedding.shape == (1, 32)
    with pytest.raises(ValueError, match="load it with max_predictions over 0"):
        session.run([[1, 2, 3]], outputs=["predictions"], rows=[0])


def test_one_text_has_the_same_bits_in_any_batch(folder: Path) -> None:
    golden = read_golden(folder)
    begin, end = golden["cu_seqlens"][3:5]
    alone = {"ids": golden["ids"][begin:end], "cu_seqlens": np.array([0, end - begin], np.int32)}
    together = logits_of(folder, golden)[begin:end]
    np.testing.assert_array_equal(logits_of(folder, alone), together)


@pytest.mark.parametrize("name", CAPPED)
def test_capped_scores_are_refused_without_a_cache(name: str) -> None:
    with pytest.raises(ValueError, match="'attention.soft_cap' is 3: scores are capped"):
        packhorse.Session.load(GOLDEN / name, kv_tokens=0)


def change(folder: Path, to: Path, **fields: Any) -> Path:
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **fields}))
    return to


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("llama", {"model_type": "mixtral"}, "'mixtral' is a mixture of experts"),
        ("llama", {"model_type": "gpt_oss"}, "'gpt_oss' is a mixture of experts"),
        ("llama", {"model_type": "qwen3_moe"}, "'qwen3_moe' is a mixture of experts"),
        ("llama", {"model_type": "jamba"}, "'jamba' is a state-space model or a hybrid"),
        ("llama", {"model_type": "phi3small"}, "'phi3small' is block-sparse attention"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not"),
        ("llama", {"pretraining_tp": 2}, "pretraining_tp = 2 is not"),
        ("llama", {"rope_scaling": {"rope_type": "ntk"}}, "rope_type = 'ntk' is not supported"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm"),
        ("opt", {"layer_norm_elementwise_affine": False}, "norms without weights"),
        ("opt-post-norm", {"architectures": ["OPTModel"]}, "in OPTForCausalLM alone"),
        ("gptj", {"rotary_dim": None}, "rotary_dim: expected a whole number"),
        ("gpt-neox", {"rotary_pct": 0.1}, "0 of 8 columns are rotated"),
        ("phi3-longrope", {"partial_rotary_factor": 0.5}, "short_factor: expected a list of 2"),
        ("smollm3", {"use_sliding_window": True}, "use_sliding_window = True"),
        ("smollm3", {"no_rope_layers": [1, 2, 1, 1]}, "no_rope_layers .* expected 0 or 1"),
        ("gemma3", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0,
                                     "original_max_position_embeddings": 64}}, "one factor"),
        ("gpt2", {"n_inner": 7}, "has shape"),
    ],
)  # fmt: skip
def test_refused_by_name(name: str, fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        inspect_checkpoint(change(GOLDEN / name, tmp_path / "changed", **fields))


def test_untied_head_that_is_missing(tmp_path: Path) -> None:
    """A model like Qwen3-Embedding is an embedder, and nothing more."""
    folder = change(GOLDEN / "smollm", tmp_path / "untied", tie_word_embeddings=False)
    assert "heads" not in inspect_checkpoint(folder).spec
    with pytest.raises(ValueError, match="has no 'heads.masked_lm' or 'heads.lm'"):
        packhorse.Session.load(folder, max_predictions=1)
