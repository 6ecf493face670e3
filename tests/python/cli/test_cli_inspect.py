"""`packhorse inspect`: what it shows beside what the session, the tokenizer and the files say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import packhorse
import pytest
from checkpoints import BERT, GOLDEN
from command_line import Cli, failed
from folder_cases import make_folder
from packhorse_weights import convert, inspect_checkpoint
from packhorse_weights.formats.gguf.file import read_gguf
from text_cases import PROMPTS
from tiny_tokenizer import with_kind, with_tokenizer

for needed in ("typer", "rich", "tokenizers"):
    pytest.importorskip(needed)

# Those that are read in a template need a tokenizer, too.
MODELS = {path.parent.name for path in GOLDEN.glob("*/config.json")}
MODELS -= {"llama-answers", "qwen3-answers"}


def described(cli: Cli, *arguments: object) -> dict[str, Any]:
    shown = cli("inspect", *arguments, "--json")
    assert (shown.status, shown.err) == (0, "")
    found = json.loads(shown.out)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", ["bert-gelu", "bert-312", "bert-old-bin", "camembert", "qwen3"])
def test_inspect(cli: Cli, name: str) -> None:
    shown = cli("inspect", GOLDEN / name, "--max-tokens", "512", "--max-sequences", "8")
    assert (shown.status, shown.err) == (0, "")
    checkpoint = inspect_checkpoint(GOLDEN / name)
    weights = [checkpoint.tensors[theirs] for theirs in checkpoint.names.values()]
    assert f"{sum(tensor.data.size for tensor in weights):,}" in shown.out
    assert str(checkpoint.spec["family"]) in shown.out
    assert "512 tokens, 8 sequences" in shown.out
    for word in ("arena", "total", checkpoint.spec["embedding"]["pooling"], weights[0].dtype):
        assert word in shown.out


def test_a_gguf_file(cli: Cli) -> None:
    path = GOLDEN / "gguf" / "llama.gguf"
    shown = cli("inspect", path)
    assert (shown.status, shown.err) == (0, "")
    for word in ("GGUF", "Q8_0", "Q5_1", "BPE of ", "512 tokens"):
        assert word in shown.out
    found = described(cli, path)
    assert found["format"] == "gguf"
    stored = sum(tensor.blocks.size for tensor in read_gguf(path).tensors.values())
    freqs, head = 4 * 4, inspect_checkpoint(path).tensors["lm_head.weight"].stored[1]
    assert sum(found["bytes"].values()) in (stored - freqs - head, stored - freqs)
    assert found["text"]["tokens"] == found["size"]["vocabulary"]


@pytest.mark.parametrize("name", [*sorted(MODELS), "static"])
def test_outputs_and_labels_are_those_of_the_session(cli: Cli, tmp_path: Path, name: str) -> None:
    folder = make_folder("static", tmp_path / "m") if name == "static" else GOLDEN / name
    session = packhorse.Session.load(folder, max_tokens=16, max_sequences=2, kv_tokens=0)
    found = described(cli, folder, "--kv-tokens", 0)
    outputs = {
        name: {"per": "token" if per_token else "sequence", "columns": columns}
        for name, (per_token, columns) in session.outputs.items()
    }
    assert found["outputs"] == outputs
    assert found["labels"] == session.labels
    assert found["embedding"]["columns"] == session.embedding_size


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("bert-gelu", ["embed"]),
        ("bert-reranker", ["score", "classify", "embed"]),
        ("bert-sequence", ["classify", "embed"]),
        ("bert-tokens", ["classify_tokens", "embed"]),
        ("bert-answers", ["answer", "embed"]),
        ("bert-predictions", ["fill_mask", "embed"]),
        ("bert-splade", ["fill_mask", "embed_sparse", "embed"]),
        ("bert-colbert", ["embed_tokens", "embed"]),
        ("bge-m3", ["embed_sparse", "embed_tokens", "embed"]),
    ],
)
def test_methods_that_are_shown_work_and_no_others(
    cli: Cli, tmp_path: Path, name: str, methods: list[str]
) -> None:
    folder = with_kind(GOLDEN / name, tmp_path / "m", "words")
    assert described(cli, folder)["methods"] == methods
    assert ", ".join(methods) in cli("inspect", folder).out
    heads = inspect_checkpoint(folder).spec.get("heads", {})
    masks = 4 if "masked_lm" in heads else 0
    model = packhorse.TextModel.load(folder, max_predictions=masks)
    calls = {
        "embed": lambda: model.embed(["cat"]),
        "score": lambda: model.score("who", ["cat"]),
        "classify": lambda: model.classify(["cat"]),
        "classify_tokens": lambda: model.classify_tokens(["cat"]),
        "answer": lambda: model.answer("who", "cat"),
        "fill_mask": lambda: model.fill_mask("the [MASK]"),
        "embed_sparse": lambda: model.embed_sparse(["cat"]),
        "embed_tokens": lambda: model.embed_tokens(["cat"]),
    }
    for method, call in calls.items():
        if method in methods:
            call()
        else:
            with pytest.raises(ValueError, match=method):
                call()


def test_text_and_prompts(cli: Cli, tmp_path: Path) -> None:
    folder = with_tokenizer(BERT, tmp_path / "m")
    prompts = {"prompts": PROMPTS, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    text = described(cli, folder)["text"]
    assert text["prompts"] == PROMPTS
    assert text["default_prompt_name"] == "query"
    assert (text["longest"], text["cut_at"]) == (120, 40)
    assert (text["kind"], text["tokens"]) == ("WordPiece", 98)
    shown = cli("inspect", folder).out
    assert "WordPiece of 98 tokens (tokenizer.json)" in shown
    assert "40 tokens (the model takes 120)" in shown
    assert 'query: "search for: ", the default' in shown
    assert 'document: "passage: "' in shown


def test_without_a_tokenizer(cli: Cli, tmp_path: Path) -> None:
    assert "no tokenizer.json" in described(cli, BERT)["text"]["error"]
    folder = shutil.copytree(BERT, tmp_path / "m")
    (folder / "tokenizer.json").write_text("{}")
    text = described(cli, folder)["text"]
    assert "tokenizer.json" in text["error"]
    assert "kind" not in text
    assert "cannot be read" in cli("inspect", folder).out


def test_several_poolings(cli: Cli) -> None:
    assert "weighted_mean + max + cls, normalised" in cli("inspect", GOLDEN / "bert-poolings").out


def test_many_labels(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    convert(GOLDEN / "bert-sequence", folder)
    path = folder / "packhorse.json"
    spec = json.loads(path.read_text())
    spec["heads"]["classifier"]["labels"] = [f"kind {i}" for i in range(2000)]
    path.write_text(json.dumps(spec))
    assert "kind 6, kind 7 and 1,992 more" in cli("inspect", folder).out


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_plan_of_a_session(cli: Cli, tmp_path: Path, dtype: str | None) -> None:
    folder = tmp_path / "m"
    convert(BERT, folder)
    asked = [folder, "--max-tokens", "256", "--threads", "1"]
    asked += [] if dtype is None else ["--dtype", dtype]
    session = described(cli, *asked)["session"]
    plan = packhorse.plan_memory(folder, dtype=dtype or "float32", max_tokens=256, threads=1)
    assert session["dtype"] == (dtype or "float32")
    assert session["bytes"]["total"] == plan.total_bytes
    assert session["buffers"] == {buffer.name: buffer.bytes for buffer in plan.arena.buffers}
    shown = cli("inspect", *asked).out
    assert "converted" in shown
    assert all(buffer.name in shown for buffer in plan.arena.buffers)


@pytest.mark.skipif(len(packhorse.available_devices()) > 1, reason="there is a GPU")
def test_a_device_that_is_not_here(cli: Cli) -> None:
    """The model is shown all the same, and why the rest is not."""
    session = described(cli, BERT, "--device", "cuda")["session"]
    assert session["device"] == "cuda"
    assert "cuda" in session["error"]
    assert "bytes" not in session
    shown = cli("inspect", BERT, "--device", "cuda")
    assert shown.status == 0
    assert "cannot be planned here" in shown.out
    assert "hidden size" in shown.out


def test_errors(cli: Cli, tmp_path: Path) -> None:
    assert failed(cli("inspect", tmp_path / "none"), "no such file")
    (tmp_path / "packhorse.json").write_text("{}")
    assert failed(cli("inspect", tmp_path), "model.safetensors")
    assert failed(cli("inspect", BERT, "--dtype", "int3"), "int3")
    assert cli("inspect", BERT, "--max-tokens", "0").status == 2


@pytest.mark.parametrize("name", ["bert-gelu", "bert-sequence", "bert-reranker"])
def test_generative_rerankers_alone_take_a_template(cli: Cli, name: str) -> None:
    shown = cli("inspect", GOLDEN / name, "--reranker", "qwen3")
    assert failed(shown, "reranker: expected a causal language model", "found 'Bert")


@pytest.mark.parametrize(
    ("name", "methods", "shown"),
    [
        ("text_to_text/marian", ["generate", "translate", "summarize"], "vocabulary"),
        ("speech/whisper", ["transcribe"], "vocabulary"),
        ("vision/clip", ["embed", "similarity", "zero_shot"], "28 x 28 pixels"),
        ("vision/deit", ["classify", "embed"], "7 x 7 pixels"),
        ("pages/colpali", ["embed_images", "embed_queries", "score"], "patches"),
    ],
)
def test_models_of_other_things_than_texts(
    cli: Cli, name: str, methods: list[str], shown: str
) -> None:
    """The methods are those of TextModel, AudioModel, ImageModel and PageModel."""
    assert described(cli, GOLDEN / name)["methods"] == methods
    outcome = cli("inspect", GOLDEN / name)
    assert ", ".join(methods) in outcome.out
    assert shown in outcome.out


def test_what_is_not_measured_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert failed(cli("bench", GOLDEN / "vision" / "clip"), "takes images")
    lines = tmp_path / "lines.txt"
    lines.write_text("a\nb\n")
    for name, made in (("text_to_text/marian", "texts of texts"), ("speech/whisper", "of speech")):
        assert failed(cli("evaluate", GOLDEN / name, lines), made)
