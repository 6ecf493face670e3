"""Writes the inputs that fuzzing starts from: small valid files of each kind."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hostile"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python/support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "weights_tools"))
import torch_archive as t
from packhorse_weights import CheckpointError, Tensor, resolve_model
from packhorse_weights.formats.safetensors import write_safetensors
from readers_fuzz import PARTS

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def _specs(folder: Path) -> None:
    for config in sorted(GOLDEN.glob("**/config.json")):
        try:
            spec = resolve_model(config.parent).spec
        except (CheckpointError, OSError):
            continue  # a part of a folder, or one that shows what is refused
        (folder / config.parent.name).write_text(json.dumps(spec))
    for name, spec in json.loads((GOLDEN / "specs_of_format_1.json").read_text()).items():
        (folder / f"format-1-{name}").write_text(json.dumps(spec))


def _safetensors(folder: Path) -> None:
    dtypes = {"float32": "f4", "float16": "f2", "int64": "i8", "int8": "i1", "bool": "?"}
    for count in range(4):
        tensors = {
            f"layers.{i}.weight": Tensor(np.zeros((i, 2), dtypes[name]), name)
            for i, name in zip(range(count), dtypes, strict=False)
        }
        write_safetensors(folder / str(count), tensors)


def _packed_tokens(folder: Path) -> None:
    limits = bytes([100, 10, 50, 200, 2, 60, 5])
    rng = np.random.default_rng(1)
    for count in (0, 3, 20):
        arrays = [rng.integers(8, 60, count) for _ in range(2)] + [rng.integers(8, 10, count)] * 2
        data = b"".join(bytes([count, *array]) for array in arrays)
        (folder / str(count)).write_bytes(limits + data + bytes([2, 8, 9, 0]))


def _folder(folder: Path) -> None:
    for config in sorted(GOLDEN.glob("**/config.json")):
        parts = [config.parent / name for name in PARTS]
        texts = [path.read_bytes() if path.is_file() else b"" for path in parts]
        name = "-".join(config.parent.relative_to(GOLDEN).parts)
        (folder / name).write_bytes(b"\0".join(texts))


def _ctranslate2(folder: Path) -> None:
    from test_ctranslate2_file import CASES

    for path in sorted((GOLDEN / "ctranslate2").glob("*/model.bin")):
        (folder / path.parent.name).write_bytes(path.read_bytes())
    for name, (data, _) in CASES.items():
        (folder / name.replace(" ", "-")).write_bytes(data)


def _gguf(folder: Path) -> None:
    from test_gguf_file import CASES, array, entry, gguf, tensor, text, u32

    for path in sorted(GOLDEN.glob("gguf*/*.gguf")):
        (folder / path.name).write_bytes(path.read_bytes())
    for name, (data, _) in CASES.items():
        (folder / name.replace(" ", "-")).write_bytes(data)
    entries = [entry("general.architecture", 8, text("llama")), entry("k", 9, array(4, 1, u32(1)))]
    (folder / "small").write_bytes(gguf(entries, [tensor()], data=16))


def _image(folder: Path) -> None:
    from test_image_file import FILES

    for name, data in FILES.items():
        (folder / name.replace(" ", "-")).write_bytes(data)


def _image_field(folder: Path) -> None:
    from test_image_file import FILES

    for kind in ("png", "jpeg", "webp"):
        text = base64.b64encode(FILES[kind])
        (folder / kind).write_bytes(text)
        (folder / f"{kind}-url").write_bytes(b"data:image/%s;base64," % kind.encode() + text)


def _image_settings(folder: Path) -> None:
    from image_cases import CONFIGS, FLEXIBLE, TILES

    for name, config in {**CONFIGS, **FLEXIBLE, **TILES}.items():
        fields = {key: value for key, value in config.items() if not key.endswith("_type")}
        (folder / name.replace(" ", "-")).write_text(json.dumps(fields))
    (folder / "prompts").write_text('{"query_prefix": "q", "visual_prompt_prefix": "a<image>b"}')


def _pickles() -> dict[str, bytes]:
    plain = t.tensor("0", 6, (2, 3))
    view = t.tensor("0", 6, (3, 2), (1, 3), offset=0, kind="FloatStorage")
    parameter = t.call(t.glob("torch._utils", "_rebuild_parameter"), plain, t.FALSE, t.NONE)
    return {
        "plain": t.state_dict(a=plain),
        "two": t.state_dict(a=plain, b=view),
        "parameter": t.state_dict(a=parameter),
        "nested": t.PROTO + t.EMPTY_DICT + t.MARK + t.text("s") + t.ordered_dict() + b"u.",
        "list": t.keys("0", "1"),
        "system": t.PROTO + t.call(t.glob("os", "system"), t.text("true")) + t.STOP,
    }


def _pickle(folder: Path) -> None:
    for name, data in _pickles().items():
        (folder / name).write_bytes(data)


def _torch(folder: Path) -> None:
    for name, data in _pickles().items():
        t.write_archive(folder / name, data, {"0": t.floats(6)})
    legacy = t.MAGIC + t.LAYOUT + t.machine() + _pickles()["plain"] + t.keys("0")
    (folder / "legacy").write_bytes(legacy + t.legacy_storage(t.floats(6), 6))
    (folder / "golden-legacy").write_bytes((GOLDEN / "legacy.bin").read_bytes())


def _sentencepiece(folder: Path) -> None:
    for path in sorted((GOLDEN / "tokenizers").glob("*/*.model")):
        (folder / path.parent.name).write_bytes(path.read_bytes())


SEEDS = {
    "cpp_packed_tokens": _packed_tokens,
    "cpp_safetensors": _safetensors,
    "cpp_spec": _specs,
    "ctranslate2": _ctranslate2,
    "folder": _folder,
    "gguf": _gguf,
    "image": _image,
    "image_field": _image_field,
    "image_settings": _image_settings,
    "pickle": _pickle,
    "safetensors": _safetensors,
    "sentencepiece": _sentencepiece,
    "torch": _torch,
}


def write_seeds(name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    SEEDS[name](folder)
