"""LoRA adapters of models with an encoder and a decoder: against PEFT
(tests/golden/make_text_to_text_adapter_golden.py), in a folder with the model, and with the same
bits whatever runs beside a request."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import GOLDEN
from generation_sessions import PAGE, load
from packhorse import GenerationSession, Sampling
from packhorse_weights import CheckpointError, read_adapter, resolve_model
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.tensor import Tensor
from text_to_text_cases import (
    ADAPTERS,
    FOLDER,
    AdapterGolden,
    log_probabilities,
    log_softmax,
    outcome,
    random_texts,
)

NAMES = sorted(path.name for path in ADAPTERS.iterdir())
_UP = "base_model.model.encoder.block.0.layer.1.DenseReluDense.wi"


def load_adapted(name: str, **options: Any) -> GenerationSession:
    session = load(FOLDER / name, max_adapters=1, kv_tokens=40 * PAGE, **options)
    session.add_adapter("one", ADAPTERS / name)
    return session


def errors(session: GenerationSession, golden: AdapterGolden, adapter: str | None) -> Any:
    count = session.vocab_size
    asked = Sampling(max_new_tokens=1, logprobs=count, prompt_logprobs=count, adapter=adapter)
    found = session.generate(golden.targets, asked, sources=golden.sources)
    rows = np.concatenate([log_probabilities(one, count) for one in found])
    return rows - log_softmax(golden.logits.astype(np.float64))[:, :count]


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_tokens_of_peft(name: str) -> None:
    golden = AdapterGolden(name)
    with load_adapted(name) as session:
        assert np.abs(errors(session, golden, "one")).max() < 5e-4
        assert np.abs(errors(session, golden, None)).max() > 0.1
        asked = Sampling(max_new_tokens=16, min_new_tokens=16, adapter="one")
        found = session.generate(golden.starts, asked, sources=golden.sources)
        assert [one.ids for one in found] == golden.greedy


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["t5", "t5-gated", "bart"])
def test_errors_of_16_bits(name: str, dtype: str) -> None:
    """No worse than twice what PyTorch's own bfloat16 on the CPU is off."""
    golden = AdapterGolden(name)
    with load_adapted(name, dtype=dtype) as session:
        found = errors(session, golden, "one")
    assert np.sqrt((found**2).mean()) < 2 * golden.bfloat16_error


@pytest.mark.parametrize("name", NAMES)
def test_merged_into_its_folder(name: str, tmp_path: Path) -> None:
    """The adapter's files in the model's folder: what PEFT gives, without a slot."""
    shutil.copytree(FOLDER / name, tmp_path, dirs_exist_ok=True)
    shutil.copytree(ADAPTERS / name, tmp_path, dirs_exist_ok=True)
    with load(tmp_path, kv_tokens=40 * PAGE) as session:
        assert np.abs(errors(session, AdapterGolden(name), None)).max() < 5e-4


def halves_of(name: str, root: Path) -> list[Path]:
    """Adapters of the encoder alone and of the decoder alone, made of one of both."""
    tensors = read_safetensors(ADAPTERS / name / "adapter_model.safetensors")
    folders = [root / half for half in ("encoder", "decoder")]
    for folder in folders:
        folder.mkdir()
        shutil.copy(ADAPTERS / name / "adapter_config.json", folder)
        of_half = {
            key: Tensor(one.data.copy(), one.dtype)
            for key, one in tensors.items()
            if f".{folder.name}." in key
        }
        assert 0 < len(of_half) < len(tensors)
        write_safetensors(folder / "adapter_model.safetensors", of_half)
    return folders


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("t5", "float32"), ("t5-gated", "int8"), ("marian", "bfloat16"), ("bart", "float32")],
)
def test_the_same_bits_whatever_runs_beside(
    name: str, dtype: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Requests with adapters of both stacks, of one of them and with none run in the same steps, of
    the same sources. One without an adapter has the bits of a session that knows none."""
    names = [None, "both", "encoder", "decoder"]

    def asked(adapter: str | None) -> Sampling:
        return Sampling(max_new_tokens=12, ignore_eos=True, logprobs=0, adapter=adapter, **settings)

    options: dict[str, Any] = {"dtype": dtype, "kv_tokens": 200 * PAGE, "threads": 2}
    with load(FOLDER / name, **options) as plain:
        sources, prompts = random_texts(plain)
        sources, prompts = sources[:4], prompts[:4]
        expected = outcome(plain.generate(prompts, asked(None), sources=sources))
    with load(FOLDER / name, **options, max_adapters=3, max_tokens=310) as session:
        for folder in (ADAPTERS / name, *halves_of(name, tmp_path)):
            session.add_adapter("both" if folder.name == name else folder.name, folder)
        pairs = list(zip(sources, prompts, strict=True))
        alone = {
            one: [outcome(session.submit(p, asked(one), source=s).result()) for s, p in pairs]
            for one in names
        }
        assert alone[None] == expected
        assert len({str(results) for results in alone.values()}) == len(names)
        for order in (names, names[::-1]):
            requests = [
                (one, [session.submit(p, asked(one), source=s) for s, p in pairs]) for one in order
            ]
            for one, submitted in requests:
                assert [outcome(request.result()) for request in submitted] == alone[one]
        assert session.stats["pages_used"] == 0


def test_a_source_is_shared_with_its_adapter_alone() -> None:
    source = np.arange(3, 93)
    with load(FOLDER / "t5", max_adapters=2, kv_tokens=40 * PAGE) as session:
        session.add_adapter("one", ADAPTERS / "t5")
        found: dict[str | None, Any] = {}
        for hits in (0, 90):
            for adapter in (None, "one"):
                before = session.stats["prefix_hit_tokens"]
                asked = Sampling(max_new_tokens=3, logprobs=0, adapter=adapter)
                result = outcome(session.submit([0], asked, source=source).result())
                assert session.stats["prefix_hit_tokens"] - before == hits
                assert found.setdefault(adapter, result) == result
        assert found[None] != found["one"]
        session.remove_adapter("one")
        session.add_adapter("one", ADAPTERS / "t5")  # under the same name: another one
        before = session.stats["prefix_hit_tokens"]
        session.submit([0], Sampling(max_new_tokens=3, adapter="one"), source=source).result()
        assert session.stats["prefix_hit_tokens"] == before


def test_refusals(tmp_path: Path) -> None:
    shutil.copytree(ADAPTERS / "t5", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "adapter_model.safetensors"
    stored = {
        key: Tensor(one.data.copy(), one.dtype) for key, one in read_safetensors(path).items()
    }
    first = "base_model.model.encoder.block.0.layer.0.SelfAttention.q"
    pair = [stored.pop(f"{first}.lora_{kind}.weight") for kind in "AB"]
    spec = resolve_model(FOLDER / "t5").spec

    def refused(module: str, message: str, of: Any = spec) -> None:
        named = {f"{module}.lora_{kind}.weight": one for kind, one in zip("AB", pair, strict=True)}
        write_safetensors(path, {**stored, **named})
        with pytest.raises(CheckpointError, match=message):
            read_adapter(tmp_path, of)

    may = r"is not one of the layers that adapters of this model may have: q, k, v, o, wi, wo$"
    refused("base_model.model.lm_head", f"lm_head {may}")
    refused("base_model.model.shared", f"shared {may}")
    refused("base_model.model.encoder.block.0.layer.1.DenseReluDense.wi_0", f"wi_0 {may}")
    refused("base_model.model.encoder.block.0.layer.1.EncDecAttention.q", may)
    refused(first.replace("block.0", "block.3"), "the model has 3 layers: .* another base model")
    refused(
        first.replace("encoder.block.0", "decoder.block.2"), "the model has 2 layers: .* another"
    )
    pair = [stored[f"{_UP}.lora_{kind}.weight"] for kind in "AB"]
    stored.clear()
    refused(_UP, "wi is not one of the layers", resolve_model(FOLDER / "t5-gated").spec)
    with load(FOLDER / "t5", max_adapters=1, max_adapter_rank=2) as session:
        with pytest.raises(ValueError, match="rank 3, but max_adapter_rank is 2"):
            session.add_adapter("one", ADAPTERS / "t5")
        with pytest.raises(ValueError, match="k_proj is not one of the layers"):
            session.add_adapter("one", ADAPTERS / "bart")


def test_beside_model_bin(tmp_path: Path) -> None:
    """Files of CTranslate2 have no layers under names of transformers."""
    shutil.copytree(GOLDEN / "ctranslate2" / "marian", tmp_path, dirs_exist_ok=True)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(CheckpointError, match="an adapter beside a model of CTranslate2"):
        resolve_model(tmp_path)
