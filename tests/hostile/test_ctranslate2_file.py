"""Files of CTranslate2 that attack their reader."""

from __future__ import annotations

import json
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from packhorse_weights import CheckpointError, inspect_checkpoint
from packhorse_weights.formats.ctranslate2 import is_ctranslate2, read_ctranslate2

GOLDEN = Path(__file__).parents[1] / "golden" / "ctranslate2"


def name(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode() + b"\0"
    return struct.pack("<H", len(raw)) + raw


def variable(
    text: str | bytes = "a",
    shape: tuple[int, ...] = (2,),
    dtype: int = 0,
    size: int | None = None,
    data: bytes | None = None,
) -> bytes:
    data = b"\0" * 8 if data is None else data
    dims = struct.pack(f"<B{len(shape)}I", len(shape), *shape)
    return name(text) + dims + struct.pack("<BI", dtype, len(data) if size is None else size) + data


def model(
    *variables: bytes,
    aliases: tuple[tuple[str, str], ...] = (),
    version: int = 6,
    count: int | None = None,
    num_aliases: int | None = None,
    tail: bytes = b"",
    kind: str | bytes = "TransformerSpec",
) -> bytes:
    data = struct.pack("<I", version) + name(kind) + struct.pack("<I", 7)
    data += struct.pack("<I", len(variables) if count is None else count) + b"".join(variables)
    data += struct.pack("<I", len(aliases) if num_aliases is None else num_aliases)
    return data + b"".join(name(one) + name(two) for one, two in aliases) + tail


CASES = {
    "old": (model(version=3), "version 3 of the format, expected 4 to 6"),
    "new": (model(version=7), "version 7 of the format"),
    "short": (b"\6\0", "the version of 4 bytes, but 2 are left"),
    "no name": (struct.pack("<I", 6) + b"\xff\xff", "the name of the specification of 65535 bytes"),
    "name without an end": (model(kind=b"Spec"), "expected a text that ends in a zero byte"),
    "empty name": (model(variable(b"\0")), "the name of a variable of 1 bytes, expected a text"),
    "name that is no text": (model(variable(b"\xff\xfe\0")), "is not UTF-8"),
    "many variables": (model(count=1 << 31), "2147483648 variables in the 4 bytes left"),
    "more variables": (model(variable(), count=2), "2 variables|the name of a variable"),
    "many dimensions": (model(variable(shape=(1,) * 9)), "has 9 dimensions, expected 8 at most"),
    "dtype": (model(variable(dtype=6)), "has the dtype 6, expected 0 .float32., 1 .int8."),
    "size": (model(variable(size=12)), "float32.2. has 12 bytes, expected 8"),
    "shape": (model(variable(shape=(3,))), "float32.3. has 8 bytes, expected 12"),
    "huge shape": (model(variable(shape=(1 << 31,) * 8)), "has 8 bytes, expected"),
    "beyond the end": (
        model(variable(shape=(1 << 20,), size=4 << 20)),
        "of 4194304 bytes, but",
    ),
    "twice": (model(variable(), variable()), "the variable 'a' appears twice"),
    "many aliases": (model(variable(), num_aliases=1 << 30), "1073741824 aliases in the 0 bytes"),
    "alias of nothing": (model(variable(), aliases=(("b", "c"),)), "of 'c', which is no variable"),
    "alias of an alias": (
        model(variable(), aliases=(("b", "a"), ("c", "b"))),
        "of 'b', which is no variable",
    ),
    "alias of itself": (model(variable(), aliases=(("a", "a"),)), "appears twice, or is a variabl"),
    "tail": (model(variable(), tail=b"\0"), "bytes after the last alias"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, tmp_path: Path) -> None:
    data, message = CASES[case]
    path = tmp_path / "model.bin"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_ctranslate2(path)


def test_what_the_cases_change_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(model(variable(), variable("n", (), 2, data=b"\5\0"), aliases=(("b", "a"),)))
    found = read_ctranslate2(path)
    assert (found.kind, found.revision, found.version) == ("TransformerSpec", 7, 6)
    assert found.tensors.keys() == {"a", "b", "n"}
    assert found.scalar("n", 0, "") == 5
    with pytest.raises(CheckpointError, match=r"a is float32\[2\], expected one number"):
        found.scalar("a", 0, "")
    assert is_ctranslate2(path)
    path.write_bytes(b"PK\3\4" + bytes(40))
    assert not is_ctranslate2(path)


def test_another_kind_of_model(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(model(variable(), kind="Wav2Vec2Spec"))
    with pytest.raises(CheckpointError, match="'Wav2Vec2Spec' is not supported; expected 'Trans"):
        inspect_checkpoint(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "marian-int8", tmp_path / "model"))


def change(folder: Path, variable_name: str, change_data: object) -> None:
    """Writes the model again with one variable changed: a new payload, or None to leave it out.
    A name that it does not have is added, in float32."""
    found = read_ctranslate2(folder / "model.bin")
    dtypes = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
    written = []
    for text, tensor in found.tensors.items():
        if text in found.aliases:
            continue
        data = np.array(tensor.data)
        if text == variable_name:
            if change_data is None:
                continue
            data = np.asarray(change_data, data.dtype)
        number = dtypes.index(tensor.dtype)
        written.append(variable(text, data.shape, number, data=data.tobytes()))
    if variable_name not in found.tensors:
        data = np.asarray(change_data, np.float32)
        written.append(variable(variable_name, data.shape, data=data.tobytes()))
    aliases = [one for one in found.aliases.items() if variable_name not in one]
    (folder / "model.bin").write_bytes(model(*written, aliases=tuple(aliases)))


@pytest.mark.parametrize(
    ("changed", "data", "message"),
    [
        ("decoder/num_heads", 0, "decoder has 0 heads"),
        ("decoder/num_heads", 5, "decoder has 5 heads in 96 rows"),
        ("encoder/activation", 6, "encoder/activation 6: expected one of"),
        ("decoder/alibi", 1, "decoder/alibi is not supported"),
        ("decoder/other", [0, 1], "decoder/other is not supported"),
        ("decoder/other_scale", [0, 1], "decoder/other_scale is not supported"),
        ("decoder/embeddings/weight", None, "there is no|weight"),
        ("decoder/embeddings/weight_scale", None, "with no scale is not supported"),
        ("decoder/embeddings/weight_scale", np.zeros(99), "scales that are not positive numbers"),
        ("decoder/embeddings/weight_scale", np.ones(98), "with a scale float32.98."),
        ("encoder/layer_0/ffn/linear_1/bias", np.zeros(31), r"expected \[32\]"),
        ("encoder/layer_0/ffn/layer_norm/gamma", np.zeros((4, 8)), r"expected \[32\]"),
        ("encoder/layer_1/ffn/linear_0/weight", None, "encoder/layer_1/.* is not supported"),
        ("encoder/layer_0/ffn/linear_0/weight", None, "0 layers in encoder"),
        ("decoder/pre_norm", 1, "are missing: decoder.final_norm"),
        ("encoder/scale_embeddings", float("nan"), "is nan, expected a finite number"),
    ],
)
def test_models_that_contradict_themselves(
    folder: Path, changed: str, data: object, message: str
) -> None:
    change(folder, changed, data)
    with pytest.raises(CheckpointError, match=message):
        inspect_checkpoint(folder)


def test_any_bytes(folder: Path) -> None:
    """Bytes of the header and of names that are something else, and files that end early."""
    path = folder / "model.bin"
    whole = path.read_bytes()
    chance = random.Random(11)
    for _ in range(120):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(len(data)) if chance.random() < 0.5 else chance.randrange(600)
            data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        path.write_bytes(bytes(data) or b"\0")
        try:
            found = inspect_checkpoint(folder)
        except CheckpointError:
            continue
        json.dumps(found.spec)
        for tensor in found.tensors.values():
            assert tensor.data.shape == tensor.shape
