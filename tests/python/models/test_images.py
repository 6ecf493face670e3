"""Encoders of images against transformers (tests/golden/make_vision_golden.py): the same bits
whatever else is in a batch, the edges, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import packhorse
import pytest
from dlpack_producer import Producer
from golden_images import (
    FOLDERS,
    OUTPUTS,
    TORCH_ERRORS,
    batch_of,
    check_empty_images,
    check_orders,
    cosines,
    positions_of_grids,
    read,
    write_positions,
)
from golden_images import VISION as GOLDEN
from packhorse import PackedPatches, Session
from packhorse.arguments import import_features
from packhorse.patches import join, patches_of
from packhorse_weights import convert, inspect_checkpoint
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.tensor import Tensor

MAX_ABS_ERROR = 5e-5  # float32; what is found is below 2e-5
MIN_COSINE = {"float16": 0.9999, "bfloat16": 0.999, "int8": 0.995}


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.mark.arm
def test_float32(folder: Path) -> None:
    golden = read(folder)
    session = Session.load(folder)
    outputs: list[Any] = [name for name in OUTPUTS if name in golden]
    assert session.takes_patches
    assert set(outputs) == {*session.outputs}
    found = session.run(batch_of(golden), outputs=outputs)
    for name in outputs:
        assert found[name].shape == golden[name].shape
        assert np.abs(found[name] - golden[name]).max() <= MAX_ABS_ERROR, name


@pytest.mark.parametrize("dtype", [*MIN_COSINE])
def test_16_and_8_bits(folder: Path, dtype: Any) -> None:
    golden = read(folder)
    found = Session.load(folder, dtype=dtype).run(batch_of(golden), outputs="embedding")
    assert cosines(found.embedding, golden["embedding"]).min() >= MIN_COSINE[dtype]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_no_worse_than_those_of_pytorch(folder: Path, dtype: Any) -> None:
    golden = read(folder)
    outputs: list[Any] = ["hidden", "embedding"]
    found = Session.load(folder, dtype=dtype).run(batch_of(golden), outputs=outputs)
    for name in outputs:
        error = np.sqrt(np.square(found[name] - golden[name]).mean())
        assert error <= 2 * TORCH_ERRORS[folder.name][dtype][name], name


@pytest.mark.parametrize("name", ["chinese-clip", "clip", "siglip", "siglip2-naflex"])
@pytest.mark.parametrize("converted", [False, True])
def test_texts_of_two_towers(name: str, converted: bool, tmp_path: Path) -> None:
    golden = read(GOLDEN / name)
    folder = convert(GOLDEN / name, tmp_path / "model") if converted else GOLDEN / name
    texts = Session.load(folder, tower="text")
    assert not texts.takes_patches
    found = texts.run((golden["ids"], golden["cu_seqlens"]), outputs=["hidden", "embedding"])
    assert np.abs(found.hidden - golden["text_hidden"]).max() <= MAX_ABS_ERROR
    assert np.abs(found.embedding - golden["text_embedding"]).max() <= MAX_ABS_ERROR
    fields = texts.config["similarity"]
    images = Session.load(folder, tower="vision").run(batch_of(golden), outputs="embedding")
    scores = images.embedding @ found.embedding.T * fields["scale"] + fields["bias"]
    np.testing.assert_allclose(scores, golden["similarity"], atol=1e-4)


def open_clip_folder(folder: Path, **fields: Any) -> Path:
    """The golden CLIP as OpenCLIP stores it, under the names that OpenCLIP's own conversion from
    transformers knows."""
    source = read_safetensors(GOLDEN / "clip" / "model.safetensors")
    arrays = {name: np.array(tensor.data) for name, tensor in source.items()}
    made: dict[str, Any] = {"logit_scale": arrays["logit_scale"]}
    for tower, prefix in (("text_model", ""), ("vision_model", "visual.")):
        for i in range(2):
            theirs = f"{tower}.encoder.layers.{i}."
            ours = f"{prefix}transformer.resblocks.{i}."
            for end in ("weight", "bias"):
                parts = [arrays[f"{theirs}self_attn.{one}_proj.{end}"] for one in "qkv"]
                made[f"{ours}attn.in_proj_{end}"] = np.concatenate(parts)
                for name, own in (
                    ("self_attn.out_proj", "attn.out_proj"),
                    ("layer_norm1", "ln_1"),
                    ("layer_norm2", "ln_2"),
                    ("mlp.fc1", "mlp.c_fc"),
                    ("mlp.fc2", "mlp.c_proj"),
                ):
                    made[f"{ours}{own}.{end}"] = arrays[f"{theirs}{name}.{end}"]
    for name, own in (
        ("text_model.final_layer_norm", "ln_final"),
        ("vision_model.pre_layrnorm", "visual.ln_pre"),
        ("vision_model.post_layernorm", "visual.ln_post"),
    ):
        for end in ("weight", "bias"):
            made[f"{own}.{end}"] = arrays[f"{name}.{end}"]
    made["token_embedding.weight"] = arrays["text_model.embeddings.token_embedding.weight"]
    made["positional_embedding"] = arrays["text_model.embeddings.position_embedding.weight"]
    made["visual.positional_embedding"] = arrays[
        "vision_model.embeddings.position_embedding.weight"
    ]
    made["visual.class_embedding"] = arrays["vision_model.embeddings.class_embedding"]
    made["visual.conv1.weight"] = arrays["vision_model.embeddings.patch_embedding.weight"]
    made["text_projection"] = np.ascontiguousarray(arrays["text_projection.weight"].T)
    made["visual.proj"] = np.ascontiguousarray(arrays["visual_projection.weight"].T)
    sizes = {"layers": 2, "width": 32, "mlp_ratio": 1.5}
    config = {
        "embed_dim": 24,
        "quick_gelu": True,
        "vision_cfg": {**sizes, "image_size": 28, "patch_size": 7, "head_width": 8, **fields},
        "text_cfg": {**sizes, "heads": 4, "context_length": 16, "vocab_size": 99},
    }
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    tensors = {name: Tensor(array, "float32") for name, array in made.items()}
    write_safetensors(
        folder / "open_clip_model.safetensors", tensors, dict.fromkeys(tensors, "float32")
    )
    return folder


def test_open_clip_folders(tmp_path: Path) -> None:
    golden = read(GOLDEN / "clip")
    folder = open_clip_folder(tmp_path / "model")
    for place in (folder, convert(folder, tmp_path / "converted")):
        texts = Session.load(place, tower="text")
        found = texts.run((golden["ids"], golden["cu_seqlens"]), outputs="embedding")
        assert np.abs(found.embedding - golden["text_embedding"]).max() <= MAX_ABS_ERROR
        found = Session.load(place).run(batch_of(golden), outputs=["hidden", "embedding"])
        assert np.abs(found.hidden - golden["hidden"]).max() <= MAX_ABS_ERROR
        assert np.abs(found.embedding - golden["embedding"]).max() <= MAX_ABS_ERROR
    with pytest.raises(ValueError, match="vision_cfg: timm_model_name = 'vit'"):
        inspect_checkpoint(open_clip_folder(tmp_path / "timm", timm_model_name="vit"))


@pytest.mark.arm
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", ["dinov2-registers", "siglip2-naflex"])
def test_alone_together_and_in_any_order(name: str, dtype: Any) -> None:
    session = Session.load(GOLDEN / name, dtype=dtype)
    one_thread = Session.load(GOLDEN / name, dtype=dtype, threads=1, max_tokens=200)
    check_orders(name, session, one_thread)


@pytest.mark.parametrize("name", ["clip", "dinov2-registers", "siglip"])
def test_empty_batches_and_images_without_patches(name: str) -> None:
    check_empty_images(name, Session.load(GOLDEN / name))


@pytest.mark.arm
@pytest.mark.parametrize("resize", ["cubic", "linear", "cubic_antialias", "linear_antialias"])
def test_positions_of_any_grid(resize: str, tmp_path: Path) -> None:
    table = write_positions(tmp_path, resize)
    for found, expected in positions_of_grids(Session.load(tmp_path), table, resize):
        np.testing.assert_allclose(found, expected, atol=2e-6)


def test_requests_are_checked() -> None:
    session = Session.load(GOLDEN / "dinov2", max_tokens=40, max_sequences=3)
    golden = batch_of(read(GOLDEN / "dinov2"))
    one = golden[:1]
    first = session.run(one, outputs="embedding").embedding
    k = golden.features.shape[1]
    wrong: list[tuple[Any, str]] = [
        (PackedPatches(golden.features[:16, : k - 1], [(4, 4)]), "features has 146 columns"),
        (PackedPatches(golden.features[:15], [(4, 4)]), "features has 15 rows, but the grids"),
        (PackedPatches(golden.features[:16], [(-4, -4)]), "grids\\[0\\] is -4 x -4"),
        (PackedPatches(golden.features[:4], [(1, 1)] * 4), "max_sequences = 3"),
        (PackedPatches(golden.features[:40], [(5, 8)]), "the batch has 41 tokens"),
        (PackedPatches(golden.features[:0], [(1 << 10, 1 << 10)]), "max_seqlen = 16384"),
        (([1, 2], [3]), "a batch of token ids was given, but this model takes patches"),
    ]
    for batch, message in wrong:
        with pytest.raises(ValueError, match=message):
            session.run(batch)
    with pytest.raises(ValueError, match="go without rows= and features="):
        session.run(one, rows=[0])
    for options in ({"on_device": True}, {"stream": 5}):
        with pytest.raises(ValueError, match="this session runs on cpu"):
            session.run(one, **options)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="a batch of patches was given"):
        Session.load(GOLDEN / "clip", tower="text").run(one)
    with pytest.raises(ValueError, match="expected at least 2, the tokens of the smallest image"):
        Session.load(GOLDEN / "dinov2", max_tokens=1)
    for features, grids, message in (
        (np.zeros(3), [(1, 1)], "features is float64\\[3\\]"),
        (np.zeros((1, 3)), [1, 1], "grids has shape"),
        (np.zeros((1, 3), int), [(1, 1)], "features is int64"),
        (Producer(0, (1, 3), "float64"), [(1, 1)], "features is float64\\[1, 3\\] on a device"),
        (Producer(0, (3,), "float16"), [(1, 1)], "features is float16\\[3\\] on a device"),
        (np.zeros((1, 3)), Producer(0, (1, 2)), "grids lie on a device"),
    ):
        with pytest.raises(ValueError, match=message):
            PackedPatches(features, grids)
    assert (session.run(one, outputs="embedding").embedding == first).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_patches_on_a_device(dtype: str) -> None:
    """They are taken where they lie, complete on the run's stream; a session on the CPU refuses
    them."""
    producer = Producer(4096, (15, 147), dtype)
    batch = PackedPatches(producer, [(3, 4), (1, 3)])
    assert batch.on_device
    assert batch.features is producer
    assert (batch.num_patches, batch.num_images) == (15, 2)
    native: Any = SimpleNamespace(device_index=0, stream=7)
    native.wait_for = lambda _stream: None
    for stream, expected in ((0, 7), (5, 5)):
        view, _owner = import_features(native, batch, stream)
        assert view == (4096, dtype, 15, 147)
        assert producer.streams.pop() == expected
    session = Session.load(GOLDEN / "dinov2")
    one = batch_of(read(GOLDEN / "dinov2"))[:1]
    first = session.run(one, outputs="embedding").embedding
    for on_device in (None, False, True):
        with pytest.raises(ValueError, match="features lie on a device, but this session runs on"):
            session.run(batch, on_device=on_device)
    with pytest.raises(ValueError, match="features lie on a device, expected host memory"):
        join([batch])
    native.device_index = 1
    with pytest.raises(ValueError, match="features lies on cuda:0, expected cuda:1"):
        import_features(native, batch, 0)
    assert (session.run(one, outputs="embedding").embedding == first).all()


def test_patches_of_an_image() -> None:
    """Patches are what a convolution reads: its weight times them is its output."""
    draw = np.random.default_rng(1)
    image, weight = draw.normal(size=(3, 6, 9)), draw.normal(size=(4, 3, 3, 3))
    batch = patches_of(image, 3)
    assert batch.grids.tolist() == [[2, 3]]
    assert batch.features.dtype == np.float32
    made = batch.features @ weight.reshape(4, -1).T
    for i in range(6):
        y, x = 3 * (i // 3), 3 * (i % 3)
        expected = (weight * image[:, y : y + 3, x : x + 3]).sum(axis=(1, 2, 3))
        np.testing.assert_allclose(made[i], expected, atol=1e-5)
    with pytest.raises(ValueError, match="in multiples of 4"):
        patches_of(image, 4)


def test_checkpoints_that_are_refused(tmp_path: Path) -> None:
    def changed(name: str, **fields: Any) -> Path:
        place = tmp_path / f"{name}{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        config = json.loads((GOLDEN / name / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**config, **fields}))
        weights = (GOLDEN / name / "model.safetensors").read_bytes()
        (place / "model.safetensors").write_bytes(weights)
        return place

    cases: list[tuple[str, dict[str, Any], str]] = [
        ("vit", {"patch_size": [7, 14]}, "patch_size is 7 x 14, expected squares"),
        ("vit", {"image_size": 3}, "image_size 3 x 3 has no patch of 7 pixels"),
        ("vit", {"image_size": "x"}, "image_size is 'x', expected a number of pixels"),
        ("vit", {"image_size": 35}, "has shape \\[16, 32\\], config.json says \\[25, 32\\]"),
        ("dinov2", {"num_hidden_layers": 1}, "a variant of dinov2"),
        ("siglip2-naflex", {"vision_config": {"num_patches": 7}}, "num_patches is not a square"),
    ]
    for name, fields, message in cases:
        with pytest.raises(ValueError, match=message):
            inspect_checkpoint(changed(name, **fields))
    with pytest.raises(ValueError, match="tower is 'both', expected one of vision, text"):
        inspect_checkpoint(GOLDEN / "clip", tower="both")


def test_specs_that_are_refused(tmp_path: Path) -> None:
    spec = inspect_checkpoint(GOLDEN / "siglip").spec
    stem = spec["stacks"]["encoder"]["stem"]

    def plan(**fields: Any) -> None:
        packhorse.plan_memory({**spec, **fields})

    def with_stem(**fields: Any) -> dict[str, Any]:
        stack = {**spec["stacks"]["encoder"], "stem": {**stem, **fields}}
        return {"stacks": {"encoder": stack}}

    plan()
    probe = spec["heads"]["probe"]
    cases: list[tuple[dict[str, Any], str]] = [
        (with_stem(features=0), "features"),
        (with_stem(positions={"kind": "learned", "count": 4}), "positions.kind"),
        (with_stem(positions={**stem["positions"], "resize": "area"}), "resize"),
        (with_stem(positions={**stem["positions"], "rows": 1 << 20}), "rows"),
        (with_stem(vocab_size=3), "vocab_size"),
        (with_stem(prefix=1 << 20), "prefix"),
        ({"heads": {"lm": {"tied": True}}}, "has no vocabulary"),
        ({"heads": {"probe": {**probe, "num_heads": 3}}}, "expected a divisor of 'hidden_size'"),
        ({"heads": {}}, "embedding.pooling"),
        (
            {
                "heads": {
                    "probe": probe,
                    "classifier": {
                        "input": ["cls"],
                        "labels": ["a"],
                        "dense": {"activation": "tanh"},
                    },
                }
            },
            "beside a list of poolings",
        ),
    ]
    for fields, message in cases:
        with pytest.raises(ValueError, match=message):
            plan(**fields)


def test_rotations_over_grids_that_are_refused() -> None:
    spec = inspect_checkpoint(GOLDEN / "dinov3").spec
    stack = spec["stacks"]["encoder"]
    compressed = {"kind": "cca", "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
    compressed |= {"depthwise_width": 3, "grouped_width": 2, "mask": "causal", "rope": "global"}
    layers = [{"blocks": [compressed, stack["layers"][0]["blocks"][1]]}] * 2
    words = {"kind": "tokens", "vocab_size": 9, "positions": {"kind": "none"}}
    for changes, message in (
        ({"stem": words}, "grid' is true, expected false without a stem of patches"),
        ({"layers": layers}, "grid' is true, expected false beside compressed attention"),
    ):
        with pytest.raises(ValueError, match=message):
            packhorse.plan_memory({**spec, "stacks": {"encoder": {**stack, **changes}}})
    packhorse.plan_memory(spec)
