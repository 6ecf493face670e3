"""ZAYA1 against transformers (tests/golden/make_zaya_golden.py), and the state that its attention
keeps in the cache: the same bits however a text comes to be computed. What all models that generate
keep to is tested of it in test_generation_models.py."""

from __future__ import annotations

import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from cases import offsets
from generation_sessions import ON, PAGE
from generation_sessions import load as load_session
from packhorse import Sampling, ops
from packhorse_weights import CheckpointError, inspect_checkpoint
from packhorse_weights.convert import convert
from packhorse_weights.formats.safetensors import read_safetensors
from packhorse_weights.spec import stack_of
from packhorse_weights.tensor import to_float32
from test_decoder_families import logits_of, read_golden
from test_generation_drafts import alone, together
from test_generation_models import outcome

ZAYA = Path(__file__).parents[2] / "golden" / "generation" / "zaya"
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 12


load = partial(load_session, ZAYA)


def tensors() -> dict[str, Any]:
    found = read_safetensors(ZAYA / "model.safetensors")
    return {name: to_float32(tensor) for name, tensor in found.items()}


def test_the_attention_block() -> None:
    """One block of operators, of a batch of uneven sequences."""
    golden, weights = read_golden(ZAYA), tensors()
    block = "model.layers.0.self_attn."
    qkv, x = block + "qkv_proj.", golden["block_input"]
    names = ("q_proj", "k_proj", "v_proj_current", "v_proj_delayed")
    latents = ops.gemm(x, np.concatenate([weights[f"{qkv}{name}.weight"] for name in names]))
    cu_seqlens = offsets(golden["block_lengths"].tolist())
    depthwise, grouped = (
        [weights[f"{qkv}conv_qk_{kind}.{part}"] for part in ("weight", "bias")]
        for kind in ("depthwise", "grouped")
    )
    heads = ops.cca(
        latents,
        cu_seqlens,
        (depthwise[0][:, 0], depthwise[1]),
        (grouped[0], grouped[1]),
        weights[block + "qk_norm.temp"],
        num_heads=HEADS,
        frequencies=np.float32(5e4) ** -(np.arange(0, 6, 2, dtype=np.float32) / 6),
    )
    # Attention takes heads of 16 columns, here filled up with zeros.
    parts = np.split(heads, [HEADS * HEAD_DIM, (HEADS + KV_HEADS) * HEAD_DIM], axis=1)
    q, k, v = (
        np.pad(part.reshape(len(x), -1, HEAD_DIM), ((0, 0), (0, 0), (0, 4))).reshape(len(x), -1)
        for part in parts
    )
    context = ops.attention(
        q, k, v, cu_seqlens, num_heads=HEADS, num_kv_heads=KV_HEADS, causal=True,
        scale=HEAD_DIM**-0.5,
    ).reshape(len(x), HEADS, 16)[..., :HEAD_DIM]  # fmt: skip
    found = ops.gemm(context.reshape(len(x), -1), weights[block + "o_proj.weight"])
    assert np.abs(found - golden["block_output"]).max() <= 5e-5


def test_the_model() -> None:
    golden = read_golden(ZAYA)
    assert (golden["chosen"].sum(0) > 0).all()  # all experts, and none
    assert np.abs(logits_of(ZAYA, golden) - golden["logits"]).max() <= 2e-4


def test_a_converted_folder(tmp_path: Path) -> None:
    golden = read_golden(ZAYA)
    convert(ZAYA, tmp_path / "float32")
    expected = logits_of(ZAYA, golden)
    np.testing.assert_array_equal(logits_of(tmp_path / "float32", golden), expected)
    # Rows that a folder holds in int8 are coarser than the groups that are made of float32.
    convert(ZAYA, tmp_path / "int8", quantize="int8")
    of_rows = np.abs(logits_of(tmp_path / "int8", golden, "int8") - expected)
    of_groups = np.abs(logits_of(ZAYA, golden, "int8") - expected)
    assert 0 < np.median(of_groups) < np.median(of_rows) < 0.05


@pytest.mark.parametrize(("device", "dtype"), ON)
def test_decode_gives_the_bits_of_prefill(device: str, dtype: str) -> None:
    on = {"device": device, "dtype": dtype, "prefix_cache": False}
    prompt = list(range(3, 60)) * 3
    sampling = Sampling(max_new_tokens=70, ignore_eos=True, logprobs=0)
    scoring = Sampling(max_new_tokens=1, ignore_eos=True, prompt_logprobs=0)
    with load(**on) as session:
        found = session.generate([prompt], sampling)[0]
        whole = session.generate([prompt + found.ids], scoring)[0].prompt_logprobs
    with load(**on, max_tokens=7) as session:
        cut = session.generate([prompt + found.ids], scoring)[0].prompt_logprobs
    assert whole is not None
    assert cut is not None
    assert whole.logprobs[-70:] == found.logprobs
    assert cut.logprobs == whole.logprobs


def asked() -> list[tuple[list[int], Sampling]]:
    random = np.random.default_rng(3)
    base = Sampling(ignore_eos=True, max_new_tokens=90, logprobs=1, seed=5)
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.7},
        {"temperature": 0.9, "top_k": 5, "n": 2},
        {"allowed_ids": [4, 5, 6, 7]},
    ]
    prompts = [random.integers(0, 67, 11 + 45 * i).tolist() for i in range(len(kinds))]
    return [
        ([*prompt, *prompt[:12]], dataclasses.replace(base, **kind))
        for prompt, kind in zip(prompts, kinds, strict=True)
    ]


def drafting_cases() -> list[Any]:
    drafts = [("ngram", 3), (ZAYA, 30), ("ngram", 30), (ZAYA, 3), ("ngram", 9)]
    kinds = {"cpu": ("float32", "float32", "bfloat16", "bfloat16", "int8")}
    kinds["cuda:0"] = ("float16", "float16", "bfloat16", "bfloat16", "bfloat16")
    return [
        pytest.param(device, dtype, *draft, id=f"{device}-{dtype}-{i}")
        for device in packhorse.available_devices()
        for i, (dtype, draft) in enumerate(zip(kinds.get(device, ()), drafts, strict=False))
    ]


@pytest.mark.parametrize(("device", "dtype", "draft", "draft_tokens"), drafting_cases())
def test_drafts_that_are_rejected_leave_nothing(
    device: str, dtype: str, draft: Any, draft_tokens: int
) -> None:
    requests = asked()
    own = {} if draft == "ngram" else {"draft_dtype": dtype}
    on = {"device": device, "dtype": dtype}
    with load(**on, prefix_cache=False) as session:
        expected = alone(session, requests)
    few = {"kv_tokens": 5 * PAGE, "max_tokens": 40, "max_sequences": 4}
    with load(**on, draft=draft, draft_tokens=draft_tokens, **own, **few) as drafting:
        for _ in range(2):
            assert together(drafting, requests) == expected
        stats = drafting.stats
        assert stats["preemptions"] > 0
        assert stats["drafted_tokens"] > 50
        if draft == "ngram":
            assert 0 < stats["accepted_tokens"] < stats["drafted_tokens"]
        else:
            assert stats["accepted_tokens"] == stats["drafted_tokens"]


@pytest.mark.parametrize(("device", "dtype"), ON)
def test_beams_part_with_a_state_of_their_own(device: str, dtype: str) -> None:
    on = {"device": device, "dtype": dtype}
    prompts = [list(range(1, 60)), list(range(60, 0, -1)) * 2, [5]]
    sampling = Sampling(max_new_tokens=80, ignore_eos=True, num_beams=4, n=4, logprobs=0)
    with load(**on, prefix_cache=False) as session:
        expected = [session.generate([prompt], sampling)[0] for prompt in prompts]
        assert len({tuple(beam.ids) for beam in expected[0]}) == 4
        # The texts of beams get their log-probabilities in one prefill, too.
        best = expected[1][0]
        scoring = Sampling(max_new_tokens=1, ignore_eos=True, prompt_logprobs=0)
        whole = session.generate([prompts[1] + best.ids], scoring)[0].prompt_logprobs
        assert whole is not None
        assert best.logprobs is not None
        assert sum(whole.logprobs[-80:]) == pytest.approx(sum(best.logprobs), abs=1e-3)
    with load(**on, kv_tokens=13 * PAGE, max_sequences=8, max_tokens=50) as session:
        for _ in range(2):
            assert outcome(session.generate(prompts, sampling)) == outcome(expected)


def test_the_state_is_planned() -> None:
    """Each page and layer keeps the latents of the last tokens, of queries, keys and half of the
    values, with heads of 16 columns in memory, and rows of whole steps of 256 bytes."""
    row = -(-((HEADS + KV_HEADS) * 16 + KV_HEADS * 16 // 2) // 64) * 64
    keys_and_values = 2 * KV_HEADS * 16 * PAGE
    for options, kept in (({}, 3), ({"draft": "ngram", "draft_tokens": 6}, 9)):
        plan = packhorse.plan_memory(ZAYA, kv_tokens=10 * PAGE, **options)
        sizes = {one.name: one.bytes for one in plan.kv_cache.buffers}
        assert sizes["layers.1.latents"] == 10 * kept * row * 4
        assert plan.bytes_per_token * plan.kv_tokens == plan.kv_cache.bytes
        assert plan.kv_cache.bytes == 3 * 10 * (kept * row + keys_and_values) * 4


def test_adapters_are_refused() -> None:
    with pytest.raises(ValueError, match="takes no adapters"):
        packhorse.Session.load(ZAYA, kv_tokens=PAGE, max_adapters=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 2}, "num_experts_per_tok = 2 is not supported"),
        ({"layer_types": ["hybrid", "linear", "hybrid"]}, "expected one of hybrid, hybrid_sliding"),
        ({"sliding_window": None}, "sliding_window: expected a whole number"),
        ({"cca_time1": 9}, "cca_time1: expected a whole number from 1 to 8"),
        (
            {"rope_parameters": {"hybrid": {"rope_type": "yarn"}}},
            "rope_type = 'yarn' is not supported",
        ),
        (
            {
                "rope_parameters": {
                    "hybrid": {"partial_rotary_factor": 0.5},
                    "hybrid_sliding": {"partial_rotary_factor": 1.0},
                }
            },
            "partial_rotary_factor",
        ),
        ({"num_experts": 5}, r"has shape \[5, 16\], config.json says \[6, 16\]"),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    shutil.copy(ZAYA / "model.safetensors", tmp_path)
    config = json.loads((ZAYA / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        inspect_checkpoint(tmp_path)


def test_the_rotation_as_the_hub_has_it(tmp_path: Path) -> None:
    """The config has a rope_type beside those of the two kinds, or has none at all."""
    shutil.copy(ZAYA / "model.safetensors", tmp_path)
    config = json.loads((ZAYA / "config.json").read_text())
    config["rope_parameters"]["rope_type"] = "default"
    (tmp_path / "config.json").write_text(json.dumps(config))
    ropes = stack_of(inspect_checkpoint(tmp_path).spec)["ropes"]
    assert ropes == {"global": {"theta": 5e4, "dims": 6}, "local": {"theta": 100.0, "dims": 6}}
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    ropes = stack_of(inspect_checkpoint(tmp_path).spec)["ropes"]
    assert ropes == {"global": {"theta": 5e6, "dims": 6}, "local": {"theta": 1e4, "dims": 6}}
