"""Golden encoders of images, and the positions of a grid."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
from checkpoints import GOLDEN
from packhorse import PackedPatches, Session
from packhorse.patches import join
from packhorse_weights import convert
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors

VISION = GOLDEN / "vision"
FOLDERS = sorted(path.parent for path in VISION.glob("*/golden.npz"))
OUTPUTS = ("hidden", "embedding", "pooled", "logits")
# Roots of mean squares of PyTorch's own errors in 16 bits: folder, dtype, output.
TORCH_ERRORS: dict[str, dict[str, dict[str, float]]] = json.loads(
    (VISION / "errors_16_bits.json").read_text(encoding="utf-8")
)
Arrays = Mapping[str, Any]


def read(folder: Path) -> Arrays:
    with np.load(folder / "golden.npz") as golden:
        return dict(golden)


def batch_of(golden: Arrays) -> PackedPatches:
    return PackedPatches(golden["features"], golden["grids"])


def cosines(a: Any, b: Any) -> Any:
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return (a * b).sum(axis=1) / lengths


def bits(result: packhorse.RunResult, outputs: list[Any]) -> list[bytes]:
    return [result[name].tobytes() for name in outputs]


def interpolated(table: Any, rows: int, columns: int, antialias: bool, cubic: bool) -> Any:
    """torch.nn.functional.interpolate of a table [rows, columns, E], in float64."""

    def weights(size: int, out: int) -> Any:
        found = np.zeros((out, size))
        scale = size / out
        stretch = max(scale, 1.0) if antialias else 1.0
        a = -0.5 if antialias else -0.75
        for i in range(out):
            centre = scale * (i + 0.5) - 0.5
            if not (cubic or antialias):
                centre = max(centre, 0.0)
            reach = (2 if cubic else 1) * stretch
            for j in range(int(np.floor(centre - reach)), int(np.ceil(centre + reach)) + 1):
                x = abs(j - centre) / stretch
                w = max(0.0, 1 - x)
                if cubic:
                    near = ((a + 2) * x - (a + 3)) * x * x + 1
                    w = near if x < 1 else ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
                    w *= x < 2
                if antialias and not 0 <= j < size:
                    continue
                found[i, min(max(j, 0), size - 1)] += w
            found[i] /= found[i].sum() if antialias else 1.0
        return found

    grid = np.einsum("iy,yxe->ixe", weights(table.shape[0], rows), table)
    return np.einsum("jx,ixe->ije", weights(table.shape[1], columns), grid)


def check_orders(name: str, session: Session, other: Session) -> None:
    """An image has the same bits alone, beside others and in `other`, a session of other sizes."""
    golden = read(VISION / name)
    batch = batch_of(golden)
    outputs: list[Any] = [one for one in OUTPUTS if one in golden]
    images = [batch[i : i + 1] for i in range(batch.num_images)]
    empty = PackedPatches(batch.features[:0], [(0, 0)])
    alone = [bits(session.run(one, outputs=outputs), outputs) for one in images]
    last = len(images) - 1
    for order in ([*range(len(images))], [last, *range(last)], [0, 0, last]):
        mixed = join([part for i in order for part in (images[i], empty)])
        found = session.run(mixed, outputs=outputs)
        for place, i in enumerate(order):
            rows = slice(*found.cu_seqlens[2 * place : 2 * place + 2])
            for kind, expected in zip(outputs, alone[i], strict=True):
                of_tokens = session.outputs[kind].per_token
                part = found[kind][rows] if of_tokens else found[kind][2 * place]
                assert part.tobytes() == expected, (order, i, kind)
    assert [bits(other.run(one, outputs=outputs), outputs) for one in images] == alone


def check_empty_images(name: str, session: Session) -> None:
    outputs: list[Any] = [*session.outputs]
    k = batch_of(read(VISION / name)).features.shape[1]
    none = session.run(PackedPatches(np.empty((0, k), np.float32), []), outputs=outputs)
    assert none.hidden.shape[0] == 0
    assert none.embedding.shape[0] == 0
    empty = session.run(
        PackedPatches(np.empty((0, k), np.float32), [(0, 0), (0, 5)]), outputs=outputs
    )
    assert empty.hidden.shape[0] == 0
    assert not empty.embedding.any()
    assert empty.embedding.shape[0] == 2
    assert empty.cu_seqlens.tolist() == [0, 0, 0]


def write_positions(folder: Path, resize: str) -> Any:
    """Writes a model without layers: hidden states of patches of zeros are their positions. Returns
    the table of these, [2, 8, E]."""
    converted = convert(VISION / "dinov2", folder / "converted")
    spec = json.loads((converted / "packhorse.json").read_text())
    stem = {**spec["stacks"]["encoder"]["stem"], "bias": False}
    stem["positions"] = {"kind": "grid", "rows": 2, "columns": 8, "resize": resize}
    del stem["norm"]
    spec["stacks"]["encoder"] = {"hidden_size": 32, "stem": stem, "layers": []}
    tensors = {
        name: tensor
        for name, tensor in read_safetensors(converted / "model.safetensors").items()
        if name.startswith("embeddings.") and not name.endswith(".bias")
    }
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    write_safetensors(folder / "model.safetensors", tensors, dtypes)
    (folder / "packhorse.json").write_text(json.dumps(spec))
    return np.asarray(tensors["embeddings.position"].data, np.float64).reshape(2, 8, -1)


def positions_of_grids(session: Session, table: Any, resize: str) -> Iterator[tuple[Any, Any]]:
    """Positions of several grids in a session of `write_positions`, and those expected."""
    grids = [(2, 8), (1, 1), (5, 3), (1, 20), (7, 8), (2, 4)]
    count = sum(rows * columns for rows, columns in grids)
    batch = PackedPatches(np.zeros((count, 147), np.float32), grids)
    found = session.run(batch, outputs="hidden")
    for i, grid in enumerate(grids):
        rows = found.hidden[found.cu_seqlens[i] + 1 : found.cu_seqlens[i + 1]]
        expected = interpolated(
            table, *grid, antialias="antialias" in resize, cubic="cubic" in resize
        )
        yield rows, expected.reshape(rows.shape)
