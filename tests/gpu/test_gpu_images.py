"""Encoders of images on the GPU: against transformers in float32, the same bits whatever else is in
a batch, positions of any grid, and texts of models with two towers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dlpack_producer import Interface, Producer
from golden_images import (
    FOLDERS,
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
# Operands of dense layers rounded to e4m3 in PyTorch, all else float32, leave 0.946 of BEiT's rows.
MIN_COSINE_8_BITS = {"int8": 0.985, "float8": 0.94}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
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
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_8_bits(kernels: str, folder: Path, dtype: Any) -> None:
    on_hopper = torch.cuda.get_device_capability(0) == (9, 0) and kernels == "sm90"
    if dtype == "float8" and not on_hopper:
        pytest.skip("needs compute capability 9.0 and its own kernels")
    golden = read(folder)
    session = Session.load(folder, DEVICE, dtype)
    found = session.run(batch_of(golden), outputs="embedding").embedding
    assert cosines(found, golden["embedding"]).min() >= MIN_COSINE_8_BITS[dtype]


@pytest.mark.parametrize("name", ["chinese-clip", "clip", "siglip", "siglip2-naflex"])
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


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_alone_together_and_in_any_order(kernels: str, precision: Precision, folder: Path) -> None:
    session = Session.load(folder, **precision.options())
    other = Session.load(folder, max_tokens=200, max_sequences=1, **precision.options())
    check_orders(folder.name, session, other)


@pytest.mark.parametrize("name", ["beit", "dinov2-registers", "dinov3"])
def test_graphs(kernels: str, precision: Precision, name: str) -> None:
    """Batches that take every recorded graph in turn: an image has the bits that it has alone."""
    golden = read(VISION / name)
    batch = batch_of(golden)
    images = [batch[i : i + 1] for i in range(batch.num_images)]
    outputs: list[Any] = ["hidden", "embedding"]
    session = Session.load(VISION / name, max_tokens=900, max_sequences=40, **precision.options())
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


@pytest.mark.parametrize("algorithm", ["online", "short", "grouped", "bytetransformer"])
def test_algorithms_add_steps_in_grids(precision: Precision, algorithm: Any) -> None:
    """BEiT: every portable algorithm gives what transformers gives, and the Hopper kernels, which
    have no such term, are refused by name."""
    folder = VISION / "beit"
    golden = read(folder)
    session = Session.load(folder, attention_algorithm=algorithm, **precision.options())
    found = session.run(batch_of(golden), outputs="hidden").hidden
    error = np.sqrt(np.square(found - golden["hidden"]).mean())
    assert error <= 2 * TORCH_ERRORS["beit"][precision.name]["hidden"]
    if torch.cuda.get_device_capability(0) == (9, 0):
        with pytest.raises(ValueError, match="'hopper' computes no term of grids; expected 'auto'"):
            Session.load(folder, attention_algorithm="hopper", **precision.options())


@pytest.mark.parametrize("name", ["beit", "clip", "dinov2-registers", "dinov3", "siglip"])
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
    with pytest.raises(ValueError, match="go without rows= and features="):
        session.run(batch[:1], rows=[0])
    assert (session.run(batch[:1], outputs="embedding").embedding == first).all()


# --- where patches lie


def there(features: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.as_tensor(features, device=DEVICE).to(dtype)


@pytest.mark.parametrize("name", ["clip", "dinov2-registers", "siglip2-naflex"])
def test_patches_on_the_device(precision: Precision, name: str) -> None:
    """The bits of the same numbers from the host, whether results stay on the device or not."""
    session = Session.load(VISION / name, **precision.options())
    golden = batch_of(read(VISION / name))
    outputs: list[Any] = [*session.outputs]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        features = there(golden.features, dtype)
        whole = PackedPatches(features, golden.grids)
        # The last batch begins at an odd row, so at an address that no vector may be read from.
        for batch in (whole, whole[1:2], whole[2:]):
            assert batch.on_device
            host = PackedPatches(batch.features.float().cpu().numpy(), batch.grids)
            expected = bits(session.run(host, outputs=outputs), outputs)
            with session.run(batch, outputs=outputs) as result:
                assert [result[one].device for one in outputs] == [DEVICE] * len(outputs)
                assert [result[one].numpy().tobytes() for one in outputs] == expected, dtype
            found = session.run(batch, outputs=outputs, on_device=False)
            assert bits(found, outputs) == expected, dtype
            with session.run(host, outputs=outputs, on_device=True) as result:
                assert [result[one].numpy().tobytes() for one in outputs] == expected, dtype
    features = there(golden.features)
    torch.cuda.synchronize()  # this interface names no stream
    interface = Interface(features.data_ptr(), tuple(features.shape), "<f4")
    found = session.run(PackedPatches(interface, golden.grids), outputs=outputs, on_device=False)
    assert bits(found, outputs) == bits(session.run(golden, outputs=outputs), outputs)
    none = PackedPatches(features[:0], [(0, 0), (0, 5)])
    found = session.run(none, outputs="embedding", on_device=False)
    assert found.embedding.shape[0] == 2
    assert not found.embedding.any()


def test_patches_are_written_late_on_a_stream(precision: Precision) -> None:
    """Work before the run on its stream, and the reader of its results, are in order."""
    session = Session.load(VISION / "dinov2", **precision.options())
    golden = batch_of(read(VISION / "dinov2"))
    expected = session.run(golden, outputs="embedding").embedding
    real = there(golden.features)
    late = torch.zeros_like(real)
    stream = torch.cuda.Stream()
    for on_device in (True, False):
        late.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            late.copy_(real)
            found: Any = session.run(
                PackedPatches(late, golden.grids),
                outputs="embedding",
                stream=stream,
                on_device=on_device,
            )
            copy = found.embedding
            if on_device:
                copy = torch.from_dlpack(found.embedding).clone()
        stream.synchronize()
        if on_device:
            copy = copy.cpu().numpy()
            found.release()
        assert copy.tobytes() == expected.tobytes()


def test_page_locked_and_ordinary_memory(precision: Precision) -> None:
    """Bits are equal, also of more patches than the 8 MiB of page-locked slots hold."""
    session = Session.load(
        VISION / "dinov2", max_tokens=20_000, max_sequences=80, **precision.options()
    )
    outputs: list[Any] = ["hidden", "embedding"]
    draw = np.random.default_rng(3)
    for grids in ([(3, 5)], [(16, 16)] * 70 + [(1, 7)], [(16, 16)] * 30):
        count = sum(rows * columns for rows, columns in grids)
        features = draw.normal(size=(count, 147)).astype(np.float32)
        locked = torch.from_numpy(features).pin_memory()
        assert locked.is_pinned()
        on_device = PackedPatches(there(features), grids)
        expected = bits(session.run(on_device, outputs=outputs, on_device=False), outputs)
        for given in (features, locked.numpy(), locked):
            batch: Any = PackedPatches(given, grids)
            assert not batch.on_device
            assert bits(session.run(batch, outputs=outputs), outputs) == expected
        # Where results stay on the device, the run returns before the device has read the patches,
        # which the caller may change at once all the same.
        with session.run(PackedPatches(locked, grids), outputs=outputs, on_device=True) as result:
            locked.zero_()
            assert [result[one].numpy().tobytes() for one in outputs] == expected


def test_wrong_patches_on_the_device(precision: Precision) -> None:
    """Messages name what was found; afterwards the session gives the same bits."""
    session = Session.load(VISION / "dinov2", **precision.options())
    golden = batch_of(read(VISION / "dinov2"))
    grids, features = golden.grids, there(golden.features)
    shape = tuple(features.shape)
    first = session.run(golden, outputs="embedding").embedding
    address, host = features.data_ptr(), golden.features.ctypes.data
    for wrong, message in [
        (features[:, :-1].contiguous(), "features has 146 columns; the model takes 147"),
        (features[:, :-1], "features is not contiguous, expected row-major order"),
        (features[:-1], "features has .* rows, but the grids have"),
        (Producer(address, shape, "float32", device=(2, 1)), "lies on cuda:1, expected cuda:0"),
        (Producer(address, shape, "float32", device=(10, 0)), "device type 10, expected CUDA"),
        (Interface(host, shape, "<f4"), "features is host memory, expected memory of cuda:0"),
    ]:
        batch: Any = PackedPatches(wrong, grids)
        for on_device in (None, False):
            with pytest.raises(ValueError, match=message):
                session.run(batch, on_device=on_device)
    for wrong, message in [
        (features.double(), r"features is float64\[.*\] on a device, expected float32, float16"),
        (features.int(), "features is int32"),
        (features[0], r"features is float32\[147\] on a device"),
    ]:
        with pytest.raises(ValueError, match=message):
            PackedPatches(wrong, grids)
    with pytest.raises(ValueError, match="grids lie on a device"):
        PackedPatches(features, torch.as_tensor(grids, device=DEVICE))
    assert (session.run(golden, outputs="embedding").embedding == first).all()
