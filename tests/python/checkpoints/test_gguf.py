"""GGUF files beside what gguf, transformers and llama.cpp read in them."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import weakref
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from packhorse_weights import CheckpointError, convert, inspect_checkpoint, resolve_model
from packhorse_weights.architectures import known_model_types
from packhorse_weights.formats.gguf import file as gguf_file
from packhorse_weights.formats.gguf import tokenizer as gguf_tokenizer
from packhorse_weights.formats.gguf.config import read_config
from packhorse_weights.formats.gguf.file import GgufFile, StoredTensor, read_gguf
from packhorse_weights.formats.gguf.model import find_gguf, open_gguf
from packhorse_weights.formats.gguf.tensor import QuantizedTensor, open_tensor
from packhorse_weights.generation_files import generation_config
from packhorse_weights.quantization.stored import PackedRows
from packhorse_weights.spec import blocks_of
from packhorse_weights.tensor import to_float32

FOLDER = GOLDEN / "gguf"
EXPECTED = json.loads((GOLDEN / "gguf.json").read_text())
MODELS = EXPECTED["models"]
# Models that run without a cache of keys and values. Others cap scores, over the cache's pages
# alone.
RUNNABLE = [
    name
    for name, model in MODELS.items()
    if model["config"]["model_type"] in known_model_types()
    and not model["config"].get("attn_logit_softcapping")
]
HIDDEN_IDS = list(range(3, 43))
TEXT_IDS = [504, 3575, 282, 4649, 314, 260, 2643, 335, 260, 1171, 1195, 2644]
# Fields that transformers gives other values, or does not set at all.
OTHERWISE = {"architectures", "rope_scaling"}


def digest(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, "<f4")).hexdigest()


@pytest.fixture(scope="module")
def types() -> GgufFile:
    return read_gguf(FOLDER / "types.gguf")


def header_of(texts: list[bytes]) -> bytes:
    """A file without tensors, whose metadata are an array of texts and a number."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    array = struct.pack("<IIQ", 9, 8, len(texts)) + b"".join(map(text, texts))
    number = struct.pack("<II", 4, 7)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + text(b"a") + array + text(b"b") + number


@pytest.mark.parametrize(
    ("texts", "at_once"),
    [
        ([], False),
        (["a"], True),
        (["", "b", "", "c"], True),
        (["a", "", ""], False),
        (["Ġthe", "é" * 100, "日本", "\U0001f40e"] * 50, True),
        (["a" * 255, "b" * 256, "c" * 257, "d" * 65_535], True),
        (["a" * 65_536, "b"], False),
        (["a", "\0", "b"], False),
        (["a", "b\1\0\0\0\0\0\0\0c", "d"], False),
    ],
)
def test_texts_of_an_array(
    texts: list[str], at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    short = gguf_file._Reader._short_texts
    monkeypatch.setattr(
        gguf_file._Reader, "_short_texts", lambda *all: found.append(short(*all)) or found[-1]
    )
    (tmp_path / "texts.gguf").write_bytes(header_of([text.encode() for text in texts]))
    assert read_gguf(tmp_path / "texts.gguf").metadata == {"a": texts, "b": 7}
    assert any(one is not None for one in found) == at_once


def test_texts_that_are_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "texts.gguf").write_bytes(header_of([b"a", b"b\xc3", b"\xa9"]))
    with pytest.raises(CheckpointError, match=r"'a'\[1\]: not UTF-8"):
        read_gguf(tmp_path / "texts.gguf")


def test_values_of_every_type(types: GgufFile) -> None:
    with np.load(FOLDER / "types.npz") as expected:
        assert sorted(expected) == sorted(types.tensors)
        for name, stored in types.tensors.items():
            values = to_float32(open_tensor(stored))
            np.testing.assert_array_equal(
                values.view(np.uint32), expected[name].view(np.uint32), name
            )


def test_blocks_are_the_values_in_pieces(types: GgufFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse_weights.formats.gguf.tensor.BLOCK", 300)
    for stored in types.tensors.values():
        tensor = open_tensor(stored)
        pieces = list(tensor.blocks())
        np.testing.assert_array_equal(np.concatenate(pieces), tensor.data.reshape(-1))
        assert tensor.shape == stored.shape == (3, 512)
        if tensor.dtype == "float32" and stored.kind.name != "F32":
            assert max(piece.size for piece in pieces) <= 300
            assert tensor.stored == (stored.kind.name, stored.blocks.size)


@pytest.mark.parametrize("name", MODELS)
def test_config_of_the_model_it_was_made_of(name: str) -> None:
    fields = open_gguf(FOLDER / f"{name}.gguf").config
    theirs = MODELS[name]["config"]
    for key in fields.keys() - OTHERWISE:
        if key in theirs or key != "head_dim":
            assert fields[key] == theirs[key], key
    assert type(fields["vocab_size"]) is int
    if (scaling := theirs.get("rope_scaling")) is not None:
        for key, value in scaling.items():
            found = fields["rope_scaling"]["rope_type" if key == "type" else key]
            assert found == (value if isinstance(value, str) else pytest.approx(value)), key
    else:
        assert "rope_scaling" not in fields


@pytest.mark.parametrize("name", MODELS)
def test_tensors_of_the_model_it_was_made_of(name: str) -> None:
    tensors = open_gguf(FOLDER / f"{name}.gguf").tensors
    expected = MODELS[name]["tensors"]
    assert tensors.keys() == expected.keys()
    for theirs, tensor in tensors.items():
        assert digest(to_float32(tensor)) == expected[theirs], theirs
        whole = np.concatenate([piece.reshape(-1) for piece in tensor.blocks()])
        np.testing.assert_array_equal(whole, tensor.data.reshape(-1))


@pytest.mark.parametrize("name", RUNNABLE)
def test_hidden_states_of_transformers(name: str) -> None:
    with np.load(FOLDER / "hidden.npz") as expected:
        path = FOLDER / f"{name}.gguf"
        session = packhorse.Session.load(path, dtype="float32", max_tokens=64, kv_tokens=0)
        hidden = session.run([HIDDEN_IDS], outputs=["hidden"]).hidden
        np.testing.assert_allclose(hidden, expected[name], rtol=0, atol=2e-5)


def test_a_file_that_stands_for_a_folder(tmp_path: Path) -> None:
    """Alone in a folder, or under any name; what lies beside a file does not count."""
    source = (FOLDER / "qwen2.gguf").read_bytes()
    (tmp_path / "blob").write_bytes(source)
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "modules.json").write_text("{")
    assert inspect_checkpoint(tmp_path / "blob").format == "gguf"
    only = tmp_path / "only"
    only.mkdir()
    (only / "model.gguf").write_bytes(source)
    checkpoint = inspect_checkpoint(only)
    assert checkpoint.files == [only / "model.gguf"]
    assert checkpoint.folder == only / "model.gguf"
    assert checkpoint.spec["family"] == "qwen2"
    (only / "other.gguf").write_bytes(source)
    with pytest.raises(CheckpointError, match=r"2 GGUF files \(model.gguf, other.gguf\)"):
        inspect_checkpoint(only)
    assert find_gguf(GOLDEN / "qwen2") is None


def test_converted(tmp_path: Path) -> None:
    """The converted folder is the same model: vectors, tokens, what generation needs."""
    source = FOLDER / "llama.gguf"
    folder = convert(source, tmp_path / "out")
    before, after = (
        packhorse.TextModel.load(one, dtype="float32", kv_tokens=0) for one in (source, folder)
    )
    texts = ["the cat sat", "<end_of_turn> a"]
    np.testing.assert_array_equal(before.embed(texts), after.embed(texts))
    for one, two in zip(
        before.tokenizer.encode(texts, None).ids,
        after.tokenizer.encode(texts, None).ids,
        strict=True,
    ):
        np.testing.assert_array_equal(one, two)
    written = json.loads((folder / "generation_config.json").read_text())
    assert written == generation_config(source)
    assert written["eos_token_id"] == sorted(written["eos_token_id"])
    small = inspect_checkpoint(convert(source, tmp_path / "small", dtype="bfloat16"))
    assert small.stored_dtype == "bfloat16"
    quantized = convert(source, tmp_path / "int8", quantize="int8")
    assert inspect_checkpoint(quantized).is_quantized


def test_nothing_is_made_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("values were made")

    monkeypatch.setattr("packhorse_weights.formats.gguf.tensor.decode", refuse)
    files = resolve_model(FOLDER / "llama.gguf")
    assert files.tensors is not None
    assert files.stored_dtype == "stored"
    with pytest.raises(AssertionError, match="values were made"):
        _ = files.tensors["embeddings.word"].data


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("dtype", ["float32", "int8", "stored"])
def test_the_runtime_reads_blocks_as_numpy_does(
    name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, whether values become floats or stay in their groups."""

    def hidden() -> Any:
        options = {"max_tokens": 64, "kv_tokens": 0, "threads": 2}
        with packhorse.Session.load(FOLDER / f"{name}.gguf", dtype=dtype, **options) as session:
            return session.run([HIDDEN_IDS], outputs=["hidden"]).hidden

    if dtype == "stored" and resolve_model(FOLDER / f"{name}.gguf").stored_dtype != dtype:
        pytest.skip("nothing in it stays quantised")
    read = hidden()
    monkeypatch.setattr(QuantizedTensor, "file_blocks", None)
    monkeypatch.setattr(PackedRows, "file_blocks", None)
    np.testing.assert_array_equal(read, hidden())


def test_tensors_are_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a session loads, values of one tensor at most are in memory that Python makes."""
    monkeypatch.setattr(QuantizedTensor, "file_blocks", None)
    made: list[weakref.ref[Any]] = []
    whole = QuantizedTensor._whole

    def make(tensor: QuantizedTensor) -> Any:
        assert not any(one() is not None for one in made)
        values = whole(tensor)
        made.append(weakref.ref(values))
        return values

    monkeypatch.setattr(QuantizedTensor, "_whole", make)
    packhorse.Session.load(FOLDER / "llama.gguf", dtype="float32", max_tokens=8)
    assert len(made) > 10


def test_a_tensor_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError("no room for it")

    with monkeypatch.context() as patch:
        patch.setattr("packhorse_weights.formats.gguf.tensor.decode", refuse)
        patch.setattr(QuantizedTensor, "file_blocks", None)
        with pytest.raises(MemoryError, match="no room for it"):
            packhorse.Session.load(FOLDER / "llama.gguf", max_tokens=8)
    packhorse.Session.load(FOLDER / "llama.gguf", max_tokens=8)


def test_loading_reads_the_file_and_makes_its_tokenizer_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Path(shutil.copy(FOLDER / "llama.gguf", tmp_path))
    calls = Counter[str]()

    def count(module: Any, name: str) -> None:
        make = getattr(module, name)

        def counted(one: Any) -> Any:
            calls[name] += 1
            return make(one)

        monkeypatch.setattr(module, name, counted)

    count(gguf_file, "_read")
    count(gguf_tokenizer, "_make_tokenizer")
    with packhorse.TextModel.load(path, threads=1, kv_tokens=64):
        assert calls == {"_read": 1, "_make_tokenizer": 1}
    # Nobody holds it any more; and what is held of another version of the file is not it.
    first = read_gguf(path)
    assert calls["_read"] == 2
    assert read_gguf(path) is first
    path.write_bytes(path.read_bytes() + bytes(64))
    assert read_gguf(path) is not first


def test_generation_config() -> None:
    found = generation_config(FOLDER / "llama.gguf") or {}
    tokens = read_gguf(FOLDER / "llama.gguf").metadata["tokenizer.ggml.tokens"]
    ends = {tokens[i] for i in found.pop("eos_token_id")}
    assert ends == {"</s>", "<end_of_turn>", "<|end|>", "<|endoftext|>"}
    assert found == {"bos_token_id": 1, "pad_token_id": 0}


# --- metadata that cannot be said


def changed(name: str, keys: dict[str, Any], without: tuple[str, ...] = ()) -> GgufFile:
    file = read_gguf(FOLDER / f"{name}.gguf")
    metadata = {k: v for k, v in file.metadata.items() if k not in without}
    return GgufFile(file.path, 3, {**metadata, **keys}, file.tensors)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba' is not supported; .*llama, qwen"),
        ({"general.architecture": "gptj"}, "architecture 'gptj' is not supported"),
        ({"general.architecture": 7}, "architecture 7 is not supported"),
        ({"llama.expert_count": 8}, "llama: mixtures of experts are not supported"),
        ({"llama.logit_scale": 2.0}, "llama.logit_scale = 2.0 is not supported"),
        ({"llama.attention.clamp_kqv": 8.0}, "llama.attention.clamp_kqv = 8.0 is not supported"),
        ({"llama.block_count": np.array([1])}, "block_count: expected a whole number .* array"),
        ({"llama.block_count": 1}, "'blk.1.[a-z_]+.weight': the model has 1 layers"),
        ({"llama.attention.head_count_kv": 4}, "16 rows; expected 32"),
        ({"llama.attention.value_length": 4}, "heads of 8 values for keys and 4 for values"),
        ({"llama.rope.dimension_count": 10}, "dimension_count: 10 of heads of 8"),
        ({"llama.rope.dimension_count": 4}, "rope_freqs.weight: expected 2 positive numbers"),
        ({"llama.rope.scaling.type": "new"}, "rope.scaling.type 'new' is not supported"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn scaling beside rope_freqs"),
        ({"llama.pooling_type": 4}, "pooling_type 4 is not supported"),
    ],
)
def test_refused(keys: dict[str, Any], words: str) -> None:
    from packhorse_weights.formats.gguf.names import read_tensors

    file = changed("llama", keys)
    with pytest.raises(CheckpointError, match=words):
        read_tensors(file, read_config(file)[0])


def test_required_keys() -> None:
    for key in ("embedding_length", "attention.layer_norm_rms_epsilon"):
        with pytest.raises(CheckpointError, match=f"{key}: expected a .*number.* found nothing"):
            read_config(changed("llama", {}, (f"llama.{key}",)))


def test_a_tensor_of_another_model() -> None:
    from packhorse_weights.formats.gguf.names import read_tensors

    file = read_gguf(FOLDER / "llama.gguf")
    odd = {**file.tensors, "blk.0.attn_sinks.weight": file.tensors["output_norm.weight"]}
    with pytest.raises(CheckpointError, match="'blk.0.attn_sinks.weight' is not supported: llama"):
        read_tensors(GgufFile(file.path, 3, file.metadata, odd), read_config(file)[0])


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, ("linear", 4.0)),
        ({"rope.scale_linear": 2.0}, ("linear", 2.0)),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, ("yarn", 4.0)),
    ],
)
def test_scaled_rotation(keys: dict[str, Any], scaling: tuple[str, float] | None) -> None:
    fields, _ = read_config(changed("qwen2", {f"qwen2.{k}": v for k, v in keys.items()}))
    found = fields.get("rope_scaling")
    assert (found and (found["rope_type"], found["factor"])) == scaling


def test_factors_of_a_rotation_that_is_not_llama3s() -> None:
    """Each frequency divided by a number of its own, whatever gave it."""
    file = read_gguf(FOLDER / "llama.gguf")
    values = np.array([1, 1.5, 2, 7], "<f4")
    kind = file.tensors["rope_freqs.weight"].kind
    factors = StoredTensor((4,), kind, values.view(np.uint8).reshape(1, -1))
    tensors = {**file.tensors, "rope_freqs.weight": factors}
    fields, _ = read_config(GgufFile(file.path, 3, file.metadata, tensors))
    assert fields["rope_scaling"]["short_factor"] == [1, 1.5, 2, 7]
    assert fields["rope_scaling"]["attention_factor"] == 1


@pytest.mark.parametrize(("name", "layers", "wide"), [("gemma2", 46, 8), ("gemma3", 62, 8)])
def test_the_largest_gemmas(name: str, layers: int, wide: int) -> None:
    """Their scores are scaled by hidden_size / heads (144 and 168 where published)."""
    fields, _ = read_config(changed(name, {f"{name}.block_count": layers}))
    assert fields["query_pre_attn_scalar"] == wide
    assert fields["head_dim"] == 16


def test_soft_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caps of scores and of logits are those of the file, and none where it says nothing."""
    names = ("gemma2.attn_logit_softcapping", "gemma2.final_logit_softcapping")
    for file, caps in (
        (changed("gemma2", dict(zip(names, (2.5, 3.5), strict=True))), (2.5, 3.5)),
        (changed("gemma2", {}, without=names), (None, None)),
    ):
        monkeypatch.setattr(
            "packhorse_weights.formats.gguf.model.read_gguf", lambda _, file=file: file
        )
        spec = inspect_checkpoint(FOLDER / "gemma2.gguf").spec
        attention = blocks_of(spec)[0][0]
        assert (attention.get("soft_cap"), spec["heads"]["lm"].get("soft_cap")) == caps


def test_pooling_of_an_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    file = changed("qwen3", {"qwen3.pooling_type": 1})
    monkeypatch.setattr("packhorse_weights.formats.gguf.model.read_gguf", lambda _: file)
    checkpoint = inspect_checkpoint(FOLDER / "qwen3.gguf")
    assert checkpoint.spec["embedding"] == {"pooling": "mean", "normalize": False}
    assert checkpoint.pooling_reason == "pooling_type says so"


# --- the real model


def test_real_tensors(smollm2: Path) -> None:
    """All values, bit for bit, as the package gguf makes them."""
    file = read_gguf(smollm2)
    kinds = Counter(stored.kind.name for stored in file.tensors.values())
    assert kinds == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert file.tensors.keys() == EXPECTED["crc32"].keys()
    for name, stored in file.tensors.items():
        sum_of_all = 0
        for piece in open_tensor(stored).blocks():
            sum_of_all = zlib.crc32(piece, sum_of_all)
        assert sum_of_all == EXPECTED["crc32"][name], name


def test_real_config(smollm2: Path) -> None:
    fields = open_gguf(smollm2).config
    assert (fields["model_type"], fields["rope_theta"]) == ("llama", 100000.0)
    assert (fields["rms_norm_eps"], fields["tie_word_embeddings"]) == (1e-5, True)
    assert generation_config(smollm2) == {
        "bos_token_id": 1,
        "pad_token_id": 2,
        "eos_token_id": [0, 2, 4],
    }


def test_real_model(smollm2: Path) -> None:
    session = packhorse.Session.load(smollm2, dtype="float32", max_tokens=64, kv_tokens=0)
    with np.load(FOLDER / "hidden.npz") as expected:
        hidden = session.run([TEXT_IDS], outputs=["hidden"]).hidden
        np.testing.assert_allclose(hidden, expected["smollm2"], rtol=0, atol=2e-4)
