"""Encoders of images on the GPU: against transformers in float32, the same bits whatever else is in
a batch, positions of any grid, and texts of models with two towers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden_images import (
    ON_GPU,
    OUTPUTS,
    TORCH_ERRORS,
    VISION,
    batch_of,
    bits,
    check_empty_images,
    check_orders,
    cosines,
    positions_of_grids,
    read,
    write_positions,
)
from gpu_support import DEVICE, Precision
from packhorse import PackedPatches, Session
from packhorse.patches import join

MIN_COSINE = {"float16": 0.9999, "bfloat16": 0.999}
# Operands of dense layers rounded to e4m3 in PyTorch, all else float32, leave 0.969 of ViT's case.
MIN_COSINE_8_BITS = {"int8": 0.99, "float8": 0.96}


@pytest.mark.parametrize("folder", ON_GPU, ids=lambda path: path.name)
def test_golden(kernels: str, precision: Precision, folder: Path) -> None:
    """All outputs of images of several sizes. Hidden states and embeddings are at most twice as far
    from float32 as PyTorch's are in the same dtype."""
    golden = read(folder)
    session = Session.load(folder, **precision.options())
    outputs: list[Any] = [name for name in OUTPUTS if name in golden]
    assert {*outputs} == {*session.outputs}
    found = session.run(batch_of(golden), outputs=outputs)
    of_torch = TORCH_ERRORS[folder.name][precision.name]
    for name in outputs:
        assert found[name].shape == golden[name].shape
        if name in of_torch:
            error = np.sqrt(np.square(found[name] - golden[name]).mean())
            assert error <= 2 * of_torch[name], name
        else:
            assert cosines(found[name], golden[name]).min() >= MIN_COSINE[precision.name], name


@pytest.mark.parametrize("dtype", [*MIN_COSINE_8_BITS])
@pytest.mark.parametrize("folder", ON_GPU, ids=lambda path: path.name)
def test_8_bits(kernels: str, folder: Path, dtype: Any) -> None:
    on_hopper = torch.cuda.get_device_capability(0) == (9, 0) and kernels == "sm90"
    if dtype == "float8" and not on_hopper:
        pytest.skip("needs compute capability 9.0 and its own kernels")
    golden = read(folder)
    session = Session.load(folder, DEVICE, dtype)
    found = session.run(batch_of(golden), outputs="embedding").embedding
    assert cosines(found, golden["embedding"]).min() >= MIN_COSINE_8_BITS[dtype]


@pytest.mark.parametrize("name", ["clip", "siglip", "siglip2-naflex"])
def test_two_towers(precision: Precision, name: str) -> None:
    golden = read(VISION / name)
    texts = Session.load(VISION / name, tower="text", **precision.options())
    images = Session.load(VISION / name, tower="vision", **precision.options())
    found = texts.run((golden["ids"], golden["cu_seqlens"]), outputs="embedding").embedding
    assert cosines(found, golden["text_embedding"]).min() >= MIN_COSINE[precision.name]
    fields = texts.config["similarity"]
    of_images = images.run(batch_of(golden), outputs="embedding").embedding
    scores = of_images @ found.T * fields["scale"] + fields["bias"]
    tolerance = 100 * precision.epsilon * fields["scale"]
    np.testing.assert_allclose(scores, golden["similarity"], atol=tolerance)


@pytest.mark.parametrize("folder", ON_GPU, ids=lambda path: path.name)
def test_alone_together_and_in_any_order(kernels: str, precision: Precision, folder: Path) -> None:
    session = Session.load(folder, **precision.options())
    other = Session.load(folder, max_tokens=200, max_sequences=1, **precision.options())
    check_orders(folder.name, session, other)


def test_graphs(kernels: str, precision: Precision) -> None:
    """Batches that take every recorded graph in turn: an image has the bits that it has alone."""
    golden = read(VISION / "dinov2-registers")
    batch = batch_of(golden)
    images = [batch[i : i + 1] for i in range(batch.num_images)]
    outputs: list[Any] = ["hidden", "embedding"]
    session = Session.load(
        VISION / "dinov2-registers", max_tokens=900, max_sequences=40, **precision.options()
    )
    alone = [bits(session.run(one, outputs=outputs), outputs) for one in images]
    random = np.random.default_rng(0)
    for count in (40, 1, 2, 3, 5, 8, 13, 21, 40):
        chosen = random.integers(0, len(images), count).tolist()
        while sum(len(images[i].features) + 5 for i in chosen) > 900:
            chosen.pop()
        found = session.run(join([images[i] for i in chosen]), outputs=outputs)
        for place, i in enumerate(chosen):
            rows = slice(*found.cu_seqlens[place : place + 2])
            parts = [found.hidden[rows].tobytes(), found.embedding[place].tobytes()]
            assert parts == alone[i], (count, place)


@pytest.mark.parametrize("name", ["clip", "dinov2-registers", "siglip"])
def test_empty_batches_and_images_without_patches(precision: Precision, name: str) -> None:
    check_empty_images(name, Session.load(VISION / name, **precision.options()))


@pytest.mark.parametrize("resize", ["cubic", "linear", "cubic_antialias", "linear_antialias"])
def test_positions_of_any_grid(precision: Precision, resize: str, tmp_path: Path) -> None:
    table = precision.round(write_positions(tmp_path, resize)).cpu().numpy()
    session = Session.load(tmp_path, **precision.options())
    for found, expected in positions_of_grids(session, table, resize):
        precision.check(found, torch.as_tensor(expected, device=DEVICE))


def test_requests_are_checked(precision: Precision) -> None:
    """After a refusal the session gives the same bits."""
    session = Session.load(VISION / "dinov2", max_tokens=40, max_sequences=3, **precision.options())
    batch = batch_of(read(VISION / "dinov2"))
    first = session.run(batch[:1], outputs="embedding").embedding
    for wrong, message in [
        (PackedPatches(batch.features[:40], [(5, 8)]), "the batch has 41 tokens"),
        (PackedPatches(batch.features[:4], [(1, 1)] * 4), "max_sequences = 3"),
        (([1, 2], [2]), "a batch of token ids was given, but this model takes patches"),
    ]:
        with pytest.raises(ValueError, match=message):
            session.run(wrong)
    with pytest.raises(ValueError, match="go without stream, on_device, rows and features"):
        session.run(batch[:1], on_device=True)
    assert (session.run(batch[:1], outputs="embedding").embedding == first).all()
