"""Models that make vectors of pages, against transformers (tests/golden/make_pages_golden.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from image_cases import SIZES, image
from packhorse import Session
from packhorse.patches import patches_of
from packhorse_weights import convert, inspect_checkpoint
from packhorse_weights.architectures import pages
from packhorse_weights.architectures.towers import tower_part
from packhorse_weights.config import Config
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.tensor import Tensor

pytestmark = pytest.mark.skipif(
    "cpu" not in packhorse.available_devices(), reason="for the CPU backend"
)
if "cpu" in packhorse.available_devices():
    from packhorse.image import PageModel
    from packhorse.image.pages import shuffled

GOLDEN = Path(__file__).parents[2] / "golden" / "pages"
FOLDER = GOLDEN / "colmodernvbert"
QUERIES = ["where do mules go", "what"]
IMAGES = range(len(SIZES))
MAX_ABS_ERROR = 5e-5


def golden(name: str = "colmodernvbert") -> dict[str, Any]:
    with np.load(GOLDEN / name / "golden.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("name", ["colmodernvbert", "colpali", "colsmol"])
def test_vectors_and_scores_are_those_of_transformers(
    name: str, converted: bool, tmp_path: Path
) -> None:
    expected = golden(name)
    folder = convert(GOLDEN / name, tmp_path / "model") if converted else GOLDEN / name
    if converted:  # what is read of images lies beside
        for settings in ("processor_config.json", "preprocessor_config.json"):
            if (GOLDEN / name / settings).exists():
                shutil.copy(GOLDEN / name / settings, folder)
    backend: Any = "pil" if name == "colpali" else "torchvision"
    with PageModel.load(folder, max_tokens=48, backend=backend) as model:
        pages = model.embed_images([image(number) for number in IMAGES])
        queries = model.embed_queries(QUERIES)
        for kind, found in (("image", pages), ("query", queries)):
            for number, vectors in enumerate(found):
                wanted = expected[f"{kind}_vectors_{number}"]
                assert vectors.shape == wanted.shape == (len(wanted), model.vector_size)
                assert np.abs(vectors - wanted).max() <= MAX_ABS_ERROR, (kind, number)
        np.testing.assert_allclose(model.score(queries, pages), expected["scores"], atol=1e-4)
        assert (model.embed_queries(QUERIES[1]) == queries[1]).all()
        assert model.embed_images([]) == []
        assert model.score([], pages).shape == (0, len(pages))


@pytest.mark.parametrize("name", ["colmodernvbert", "colsmol"])
def test_a_page_alone_and_among_others(name: str) -> None:
    with PageModel.load(GOLDEN / name) as model:
        together = model.embed_images([image(number) for number in IMAGES])
    with PageModel.load(GOLDEN / name, threads=1, max_sequences=1, max_tokens=16) as model:
        for number in IMAGES:
            assert (model.embed_images(image(number))[0] == together[number]).all()


@pytest.mark.parametrize("name", ["colmodernvbert", "colsmol"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits(name: str, dtype: Any) -> None:
    expected = golden(name)
    with PageModel.load(GOLDEN / name, dtype=dtype) as model:
        for number, found in enumerate(model.embed_images([image(0), image(4)])):
            wanted = expected[f"image_vectors_{(0, 4)[number]}"]
            assert (found * wanted).sum(axis=1).min() > 0.99


def test_rows_take_the_place_of_tokens() -> None:
    """The session of texts: rows among the tokens of several sequences, in order."""
    expected = golden()
    session = Session.load(FOLDER, tower="text")
    width = session.takes_features
    assert width == 32 * 4
    ids = [expected["query_ids_0"], expected["image_ids_4"], expected["query_ids_1"]]
    token = inspect_checkpoint(FOLDER, tower="text").spec["stacks"]["encoder"]["stem"]["rows"]["id"]
    count = int((ids[1] == token).sum())
    assert count == 16
    rows = np.random.default_rng(1).normal(size=(count, width)).astype(np.float32)

    def run(batch: Any, features: Any) -> Any:
        return session.run(batch, "vectors", features=features).vectors

    alone = run([ids[1]], rows)
    together = run(ids, rows)
    assert (together[len(ids[0]) : len(ids[0]) + len(ids[1])] == alone).all()
    twice = run([ids[1], ids[1]], np.concatenate([rows, rows[::-1]]))
    assert (twice[: len(alone)] == alone).all()
    assert (twice[len(alone) :] == run([ids[1]], rows[::-1])).all()
    assert not (alone == twice[len(alone) :]).all()
    none = np.empty((0, width), np.float32)
    assert (run([ids[0]], none) == run([ids[0]], None)).all()
    assert run([[]], none).shape == (0, 16)
    for features, message in (
        (None, "features has 0 rows, but ids has 16 tokens 5"),
        (rows[1:], "features has 15 rows, but ids has 16 tokens 5"),
        (rows[:, 1:], "features has 127 columns; the model takes rows of 128"),
        (rows[0], "features is float32\\[128\\], expected a matrix of floats"),
        (np.zeros((count, width), int), "expected a matrix of floats"),
    ):
        with pytest.raises(ValueError, match=message):
            run([ids[1]], features)
    assert (run([ids[1]], rows) == alone).all()
    with pytest.raises(ValueError, match="this model takes token ids alone"):
        Session.load(GOLDEN.parent / "bert-gelu").run([[1]], features=rows[:1])


def test_sessions_of_colpali() -> None:
    folder = GOLDEN / "colpali"
    with np.load(folder / "golden.npz") as arrays:
        expected = dict(arrays)
    batch = patches_of(expected["pixels"], 7)
    rows = Session.load(folder, tower="vision").run(batch, "hidden").hidden
    texts = Session.load(folder, tower="text")
    found = texts.run([expected["ids"]], "vectors", features=rows).vectors
    assert np.abs(found - expected["vectors"]).max() <= MAX_ABS_ERROR


def colpali(folder: Path, settings: str, **changes: Any) -> Path:
    """A copy of ColPali's folder with fields of one of its files changed."""
    shutil.copytree(GOLDEN / "colpali", folder)
    path = folder / settings
    path.write_text(
        json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes})
    )
    return folder


def test_questions_of_colpali_begin_once(tmp_path: Path) -> None:
    """Questions and images have the same tokens where the tokenizer begins a text by itself."""
    plain = GOLDEN / "colpali"
    begins = shutil.copytree(plain, tmp_path / "model")
    path = begins / "tokenizer.json"
    fields = json.loads(path.read_text())
    ids = {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}
    around = [
        {"SpecialToken": {"id": "<bos>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    fields["post_processor"] = {
        "type": "TemplateProcessing", "single": around, "pair": around, "special_tokens": ids,
    }  # fmt: skip
    path.write_text(json.dumps(fields))
    with PageModel.load(plain) as one, PageModel.load(begins) as other:
        assert other.texts.tokenizer.encode([""], None).ids[0].tolist() == [2]
        assert (one.embed_queries("what") == other.embed_queries("what")).all()
        assert (one.embed_images(image(0))[0] == other.embed_images(image(0))[0]).all()


def test_folders_of_colpali_that_are_refused(tmp_path: Path) -> None:
    for number, (settings, changes, message) in enumerate(
        (
            ("preprocessor_config.json", {"image_seq_length": 9}, "is 9, but an image has 16 rows"),
            ("preprocessor_config.json", {"size": {"shortest_edge": 28}}, "expected one"),
            ("preprocessor_config.json", {"size": {"height": 4, "width": 28}}, "0 x 4 patches"),
            ("processor_config.json", {"query_prefix": 7}, "query_prefix 7, expected texts"),
            ("tokenizer_config.json", {"pad_token": 7}, "pad_token is 7, not a token"),
        )
    ):
        folder = colpali(tmp_path / str(number), settings, **changes)
        with pytest.raises(ValueError, match=message):
            PageModel.load(folder)
    unknown = colpali(tmp_path / "x", "preprocessor_config.json", image_processor_type="Idefics3")
    with pytest.raises(ValueError, match="the image processor is Idefics3, expected one of"):
        PageModel.load(unknown)


def test_shuffled_rows() -> None:
    """A cell of 2 x 2 rows is the four of them, row by row, each after the other."""
    rows = np.arange(24 + 4, dtype=np.float32)[:, None] * [1, 100]
    made = shuffled(rows, np.array([[4, 6], [2, 2]], np.int32), 2)
    assert made.shape == (7, 8)
    assert made[0, ::2].tolist() == [0, 1, 6, 7]
    assert made[4, ::2].tolist() == [14, 15, 20, 21]
    assert made[6, ::2].tolist() == [24, 25, 26, 27]
    assert shuffled(rows[:0], np.zeros((0, 2), np.int32), 2).shape == (0, 8)


def test_questions_with_placeholders_are_refused() -> None:
    with PageModel.load(FOLDER) as model:
        with pytest.raises(ValueError, match="texts\\[1\\] has the token 5, which stands for a"):
            model.embed_queries(["what", "<image>"])
        with pytest.raises(ValueError, match="image 1: an image of 1 bytes is no JPEG"):
            model.embed_images([image(0), b"x"])
        assert len(model.embed_queries(["what"])) == 1


def test_folders_that_are_refused(tmp_path: Path) -> None:
    for number, (changes, message) in enumerate(
        (
            ({"image_seq_len": 64}, "image_seq_len is 64, but a tile becomes 4 rows"),
            ({"visual_prompt_prefix": "no image"}, "expected texts, the first with one <image>"),
            ({"image_processor": None}, "no settings of an image processor"),
        )
    ):
        folder = shutil.copytree(FOLDER, tmp_path / str(number))
        path = folder / "processor_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        with pytest.raises(ValueError, match=message):
            PageModel.load(folder)


def test_folders_of_colsmol_that_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(GOLDEN / "colsmol", tmp_path / "sides")
    fields = json.loads((folder / "config.json").read_text())
    fields["vision_config"]["image_size"] = 21
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="an image has 3 x 3 patches, expected the same power"):
        PageModel.load(folder)
    folder = shutil.copytree(GOLDEN / "colsmol", tmp_path / "whole")
    weights = read_safetensors(GOLDEN / "colsmol" / "model.safetensors")
    plain = {name: tensor for name, tensor in weights.items() if not name.startswith("linear.")}
    write_safetensors(folder / "model.safetensors", plain, dict.fromkeys(plain, "float32"))
    with pytest.raises(ValueError, match="no matrix named linear.weight, which makes vectors"):
        PageModel.load(folder)


def test_sizes_of_colsmol() -> None:
    """A config that names what differs from the defaults of Idefics3, as the base of ColSmol-256M
    does: 64 rows of 576 columns of a tile."""
    seen = {"hidden_size": 768, "image_size": 512, "num_attention_heads": 12, "patch_size": 16}
    text = {
        "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
        "num_hidden_layers": 30, "num_key_value_heads": 3, "vocab_size": 49280,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000,
    }  # fmt: skip
    whole = {"model_type": "idefics3", "image_token_id": 49190, "scale_factor": 4}
    config = Config({**whole, "text_config": text, "vision_config": seen}, "config.json")
    made = pages.SMOL_TEXT.spec("colidefics3_text", tower_part(config, "text"))
    assert made["rows"] == {"features": 768 * 4 * 4, "bias": False, "id": 49190}
    assert (made["num_heads"], made["num_kv_heads"], made["head_dim"]) == (9, 3, 64)
    assert made["attention"]["mask"] == "causal"
    made = pages.SMOL_IMAGES.spec("colidefics3_vision", tower_part(config, None))
    places = made["patches"]["positions"]
    assert places["rows"] * places["columns"] // made["pages"]["shuffle"] ** 2 == 64
    assert (made["num_layers"], made["intermediate_size"], made["num_heads"]) == (12, 3072, 12)


def adapted(folder: Path, modules: list[str]) -> dict[str, Any]:
    """Puts an adapter of rank 2 and alpha 6 beside a model's files. Returns the model's tensors,
    with the adapter added to them."""
    tensors = read_safetensors(folder / "model.safetensors")
    merged = {name: tensor.data.copy() for name, tensor in tensors.items()}
    draw = np.random.default_rng(5)
    pairs = {}
    for module in modules:
        rows, columns = merged[f"{module}.weight"].shape
        a = draw.normal(0, 0.3, (2, columns)).astype(np.float32)
        b = draw.normal(0, 0.3, (rows, 2)).astype(np.float32)
        pairs[f"base_model.model.{module}.lora_A.weight"] = Tensor(a, "float32")
        pairs[f"base_model.model.{module}.lora_B.weight"] = Tensor(b, "float32")
        change = (b.astype(np.float64) * 3 @ a).astype(np.float32)
        merged[f"{module}.weight"] += change
    write_safetensors(folder / "adapter_model.safetensors", pairs, dict.fromkeys(pairs, "float32"))
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "base_model_name_or_path": "a/base"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return {name: Tensor(data, "float32") for name, data in merged.items()}


def test_an_adapter_beside_colsmol(tmp_path: Path) -> None:
    """Layers of both halves and the one that makes vectors: as if they had been trained as a
    whole."""
    folder = shutil.copytree(GOLDEN / "colsmol", tmp_path / "model")
    modules = [
        "model.text_model.layers.1.self_attn.k_proj",
        "model.text_model.layers.2.mlp.down_proj",
        "model.vision_model.encoder.layers.0.self_attn.q_proj",
        "model.connector.modality_projection.proj",
        "linear",
    ]
    tensors = adapted(folder, modules)
    whole = shutil.copytree(GOLDEN / "colsmol", tmp_path / "whole")
    (whole / "model.safetensors").unlink()
    write_safetensors(whole / "model.safetensors", tensors, dict.fromkeys(tensors, "float32"))
    with PageModel.load(folder) as model, PageModel.load(whole) as expected:
        for mine, wanted in (
            (model.embed_queries("what"), expected.embed_queries("what")),
            (model.embed_images(image(0))[0], expected.embed_images(image(0))[0]),
        ):
            assert np.abs(mine - wanted).max() <= MAX_ABS_ERROR
    assert np.abs(wanted - golden("colsmol")["image_vectors_0"]).max() > 0.01
    path = folder / "adapter_model.safetensors"
    pairs = {
        name.replace("layers.1.", "layers.3."): tensor
        for name, tensor in read_safetensors(path).items()
    }
    pairs = {name: Tensor(tensor.data.copy(), "float32") for name, tensor in pairs.items()}
    write_safetensors(path, pairs, dict.fromkeys(pairs, "float32"))
    with pytest.raises(ValueError, match="layers.3.self_attn.k_proj is no dense .*\\('a/base'\\)"):
        PageModel.load(folder)


def test_what_is_no_question_is_refused() -> None:
    with PageModel.load(FOLDER) as model:
        for given, message in (
            (None, "queries is None"),
            (b"a", "queries is b'a'"),
            ({"a": 1}, "queries is .* in an order"),
            (["a", None], r"queries\[1\] is None, expected a text"),
        ):
            with pytest.raises(ValueError, match=message):
                model.embed_queries(given)
    for call in (model.embed_images, model.embed_queries):
        with pytest.raises(RuntimeError, match="closed"):
            call([])
