"""T5 in GGUF files, of both stacks and of the encoder alone. Reference: transformers on the weights
that the files hold, and the tokenizer of the models that they were made of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from packhorse import Sampling
from packhorse.text import TextTokenizer
from packhorse_weights import CheckpointError, convert
from packhorse_weights.formats.gguf.file import GgufFile, read_gguf
from packhorse_weights.formats.gguf.model import open_gguf
from packhorse_weights.formats.gguf.tokenizer import read_tokenizer
from text_to_text_cases import log_softmax
from text_to_text_models import make_folder
from tokenizer_texts import TEXTS

FOLDER = GOLDEN / "gguf_t5"
NAMES = ("t5", "t5-gated", "umt5")


@pytest.fixture(scope="module")
def golden() -> Any:
    return np.load(FOLDER / "expected.npz")


def likely(name: str, golden: Any, dtype: Any) -> tuple[Any, Any]:
    """Log-probabilities of the hundred most probable tokens after each of a prompt, and those that
    transformers gives them."""
    target, source = golden[f"{name}/target"], golden[f"{name}/source"]
    scoring = Sampling(max_new_tokens=1, logprobs=100, prompt_logprobs=100)
    with packhorse.Session.load(FOLDER / f"{name}.gguf", dtype=dtype, kv_tokens=512) as session:
        assert session.dtype == (dtype or "stored")
        found = session.submit(target, scoring, source=source).result()
    tops = [*found.prompt_logprobs.top, *found.top_logprobs]
    assert len(tops) == len(target)
    theirs = log_softmax(golden[f"{name}/logits"].astype(np.float64))
    expected = [[theirs[i, token] for token, _ in top] for i, top in enumerate(tops)]
    return np.array([[value for _, value in top] for top in tops]), np.array(expected)


@pytest.mark.parametrize("name", NAMES)
def test_transformers(name: str, golden: Any) -> None:
    found, expected = likely(name, golden, "float32")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=5e-4)


def test_the_encoder_alone(golden: Any) -> None:
    path = FOLDER / "t5-gated-encoder.gguf"
    assert open_gguf(path).config["architectures"] == ["T5EncoderModel"]
    with packhorse.Session.load(path, dtype="float32") as session:
        found = session.run([golden["t5-gated/source"]], outputs=["hidden"]).hidden
    np.testing.assert_allclose(found, golden["t5-gated/hidden"], rtol=0, atol=5e-5)


def test_weights_that_stay_quantised(golden: Any) -> None:
    """Attention of random T5s is so sharp that roundings grow: bfloat16's are the measure."""
    errors = {}
    for dtype in (None, "bfloat16"):
        found, expected = likely("t5-gated", golden, dtype)
        errors[dtype] = np.sqrt(np.square(found - expected).mean())
    assert 0 < errors[None] < 1.5 * errors["bfloat16"]


def test_config() -> None:
    """Fields as transformers' config of the model has them."""
    for name in NAMES:
        found = open_gguf(FOLDER / f"{name}.gguf").config
        theirs = json.loads((GOLDEN / "text_to_text" / name / "config.json").read_text())
        for field in (
            "d_model",
            "d_kv",
            "d_ff",
            "num_layers",
            "num_decoder_layers",
            "num_heads",
            "layer_norm_epsilon",
            "relative_attention_num_buckets",
            "decoder_start_token_id",
            "eos_token_id",
            "pad_token_id",
            "model_type",
            "feed_forward_proj",
        ):
            assert found[field] == theirs[field], (name, field)


# --- texts


def test_tokens() -> None:
    """Those of the model's own tokenizer, but for sentinels, which files do not name."""
    theirs = TextTokenizer.load(GOLDEN / "tokenizers" / "t5")
    ours = TextTokenizer.load(FOLDER / "t5.gguf")
    texts = [text for text in TEXTS if "<extra_id" not in text]
    assert len(texts) >= 20
    for text in [*texts, "  two  spaces ", "[PAD200]", "\U0001f40e \u2126 \ufb01"]:
        found, expected = (one.encode([text], None).ids[0] for one in (ours, theirs))
        np.testing.assert_array_equal(found, expected, text)
        ids = [int(i) for i in found]
        assert ours.decode(ids, skip_special=True) == theirs.decode(ids, skip_special=True)


def test_texts_and_a_converted_folder(tmp_path: Path) -> None:
    """The file writes what the folder writes that it was made of, in float16."""
    folder = make_folder(tmp_path / "t5", "t5")
    (folder / "generation_config.json").unlink()
    texts = ["the cat sat on the mat", "Hello  world ", ""]
    call: dict[str, Any] = {"max_new_tokens": 8, "details": True}
    half = tmp_path / "half"
    convert(folder, half, dtype="float16")
    converted = convert(FOLDER / "t5.gguf", tmp_path / "out")
    written = []
    for path in (FOLDER / "t5.gguf", half, converted):
        with packhorse.TextModel.load(path, dtype="float32", kv_tokens=1024) as model:
            made = [*model.generate(texts, **call), *model.generate(texts, num_beams=3, **call)]
            assert model.translate(texts, **call)[0].text == made[0].text
            written.append([(one.ids, one.text) for one in made])
    assert written[0] == written[1] == written[2]


# --- what is refused


def changed(**metadata: Any) -> GgufFile:
    """The file with other metadata; None: without it."""
    file = read_gguf(FOLDER / "t5.gguf")
    found = {**file.metadata, **metadata}
    kept = {key: value for key, value in found.items() if value is not None}
    return replace(file, metadata=kept)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("precompiled_charsmap", np.arange(9, dtype=np.uint8), "precompiled_charsmap: rules of"),
        ("precompiled_charsmap", np.arange(9, dtype=np.int32), "charsmap: expected bytes"),
        ("scores", np.full(243, np.nan, np.float32), "scores: expected a number per token"),
        ("scores", None, "scores: expected a number per token"),
        ("tokens", ["a", "", *map(str, range(241))], "a piece of 0 characters"),
    ],
)
def test_hostile_tokenizers(key: str, value: Any, message: str) -> None:
    file = changed(**{f"tokenizer.ggml.{key}": value})
    with pytest.raises(CheckpointError, match=message):
        _ = read_tokenizer(file).tokenizer  # type: ignore[union-attr]
