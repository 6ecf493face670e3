"""Any bytes as the files of a model, for the readers in Python: each is read, or refused with
CheckpointError. Nothing else may come out of them, and no code of the file's may run.

Usage: python tests/fuzz/readers_fuzz.py READER [options of libFuzzer] FOLDERS   (needs atheris)
       python tests/fuzz/readers_fuzz.py READER --lines FOLDER
       python tests/fuzz/readers_fuzz.py READER --mutate SECONDS

The first fuzzes; the second says which share of the reader's lines the inputs of a folder reach;
the third changes the inputs that fuzzing starts from at random, without looking at lines. Both need
nothing.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "weights_tools"))
FUZZES = __name__ == "__main__" and not {"--lines", "--mutate"} & {*sys.argv}

if FUZZES:
    import atheris

    instrumented: Any = atheris.instrument_imports(include=["packhorse_weights", "packhorse.image"])
else:
    instrumented = contextlib.nullcontext()
with instrumented:
    import packhorse.image
    import packhorse_weights
    from packhorse.image import ImageProcessor, ImageSettings, decode
    from packhorse.image.decoding import open_image
    from packhorse.image.prompts import TilePrompts, WholePrompts
    from packhorse.image.tiles import TileSettings
    from packhorse_weights import CheckpointError, inspect_checkpoint
    from packhorse_weights.formats.ctranslate2_folder import open_ctranslate2
    from packhorse_weights.formats.gguf.model import open_generation, open_gguf, open_tokenizer
    from packhorse_weights.formats.safetensors import read_safetensors
    from packhorse_weights.formats.torch.file import read_torch
    from packhorse_weights.formats.torch.pickle import read_pickle
    from packhorse_weights.generation_files import generation_config
    from packhorse_weights.tokenizers.files import build_tokenizer
    from packhorse_weights.tokenizers.sentencepiece import read_sentencepiece

# Folder in memory, where the system has it: every input is written to a file.
_SHM = Path("/dev/shm")
_ROOM = tempfile.TemporaryDirectory(
    prefix="packhorse-fuzz-", dir=_SHM if _SHM.is_dir() else None, ignore_cleanup_errors=True
)
ROOM = Path(_ROOM.name)

# Parts of an input of the reader `folder`, separated by zero bytes.
PARTS = (
    "config.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
    "generation_config.json",
)


def _write(name: str, data: bytes) -> Path:
    path = ROOM / name
    path.write_bytes(data)
    return path


def _ctranslate2(data: bytes) -> None:
    folder = ROOM / "ctranslate2"
    if not folder.exists():
        golden = Path(__file__).resolve().parents[1] / "golden/ctranslate2/marian-int8"
        shutil.copytree(golden, folder)
    (folder / "model.bin").write_bytes(data)
    for tensor in open_ctranslate2(folder / "model.bin").tensors.values():
        assert tensor.data.shape == tensor.shape


def _gguf(data: bytes) -> None:
    path = _write("model.gguf", data)
    for read in (open_gguf, open_tokenizer, open_generation):
        with contextlib.suppress(CheckpointError):
            read(path)
    # Tensors that are decoded when they are asked for.
    with contextlib.suppress(CheckpointError):
        for tensor in open_gguf(path).tensors.values():
            assert tensor.data.shape == tensor.shape


def _image(data: bytes) -> None:
    processor = ImageProcessor(ImageSettings(resize=(9, 8)), threads=1, max_pixels=1 << 16)
    with contextlib.suppress(ValueError):
        assert processor(data).shape == (1, 3, 9, 8)
        sides = decode(data, max_pixels=1 << 16).size
        assert sorted(open_image(data).size) == sorted(sides)


def _image_field(data: bytes) -> None:
    """An image of a request: a data URL, base64 or the bytes of a file."""
    from packhorse.image.file_reader import FileReader
    from packhorse.serve.errors import ServeError
    from packhorse.serve.models.image_inputs import ImageInput

    reader = FileReader(None, 1)
    for content in (data, data.decode("latin-1")):
        field = ImageInput("image", content)
        with contextlib.suppress(ServeError):
            file = field.file(1 << 16)
            assert len(file) <= 1 << 16
            found = field.header(reader, file, 1 << 16)
            assert found.width * found.height <= 1 << 16


# Families of image processors, whose defaults differ.
_FAMILIES = ("ViT", "DeiT", "Beit", "Bit", "CLIP", "ChineseCLIP", "Siglip", "Siglip2")


def _image_settings(data: bytes) -> None:
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(config, dict):
        return
    for family in _FAMILIES:
        with contextlib.suppress(ValueError):
            named = {"image_processor_type": f"{family}ImageProcessor", **config}
            settings = ImageSettings.from_config(named)
            for backend in ("torchvision", "pil"):
                assert settings.values(backend).shape == (3, 256)
            for size in ((1, 9000), (3, 2)):
                assert min(settings.resized(*size)) > 0
    with contextlib.suppress(ValueError):
        tiles = TileSettings.from_config(
            {"image_processor_type": "Idefics3ImageProcessor", **config}
        )
        for size in ((1, 9000), (3, 2)):
            assert all(side % tiles.tile == 0 for side in tiles.sizes(*size)[1])
    with contextlib.suppress(ValueError):
        TilePrompts.from_config(config, 4).of_image((1, 2))
    with contextlib.suppress(ValueError):
        WholePrompts.from_config(config, {}, 4, adds_begin=False).of_query("")


def _pickle(data: bytes) -> None:
    read_pickle(data)


def _torch(data: bytes) -> None:
    for tensor in read_torch(_write("model.bin", data)).values():
        assert tensor.data.shape == tensor.shape
        tensor.data.sum()  # reads all of it


def _safetensors(data: bytes) -> None:
    for tensor in read_safetensors(_write("model.safetensors", data)).values():
        tensor.data.sum()


def _sentencepiece(data: bytes) -> None:
    read_sentencepiece(_write("tokenizer.model", data))


def _folder(data: bytes) -> None:
    folder = ROOM / "model"
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    weights = folder / "model.safetensors"
    if not weights.exists():
        golden = Path(__file__).resolve().parents[1] / "golden/bert-gelu/model.safetensors"
        weights.write_bytes(golden.read_bytes())
    for name, text in zip(PARTS, data.split(b"\0"), strict=False):
        if text:
            (folder / name).write_bytes(text)
    try:
        for read in (inspect_checkpoint, generation_config):
            with contextlib.suppress(CheckpointError):
                json.dumps(getattr(read(folder), "spec", None))
        build_tokenizer(folder, folder)
    finally:
        for name in PARTS:
            (folder / name).unlink(missing_ok=True)


READERS: dict[str, Callable[[bytes], None]] = {
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
# The modules whose lines are counted.
MODULES = {
    "ctranslate2": ("formats.ctranslate2",),
    "folder": (
        "architectures.",
        "checkpoint",
        "classifier",
        "config",
        "generation_files",
        "generation_settings",
        "sentence_transformers.modules",
        "sentence_transformers.pooling",
        "tokenizers.files",
        "tokenizers.special_tokens",
    ),
    "gguf": ("formats.gguf.",),
    "image": ("image.decoding", "image.pixels", "image.processor"),
    "image_field": ("serve.models.image_inputs",),
    "image_settings": ("image.settings", "image.tiles", "image.prompts"),
    "pickle": ("formats.torch.pickle",),
    "safetensors": ("formats.safetensors",),
    "sentencepiece": ("tokenizers.sentencepiece", "tokenizers.charsmap"),
    "torch": ("formats.torch.",),
}


def read_one(reader: str, data: bytes) -> None:
    with contextlib.suppress(CheckpointError):
        READERS[reader](data)


def _lines_of(code: CodeType) -> set[int]:
    """The lines of functions, without the `def` lines that run when a module is imported."""
    found: set[int] = set()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= {line for _, _, line in inner.co_lines() if line} - {inner.co_firstlineno}
            found |= _lines_of(inner)
    return found


def lines_reached(reader: str, inputs: list[bytes]) -> tuple[int, int]:
    """(the lines that these inputs reach, all lines) of the modules of a reader."""
    package = Path(packhorse_weights.__file__).parent
    if reader.startswith("image"):
        package = Path(packhorse.image.__file__).parents[1]
    lines = {}
    for path in package.rglob("*.py"):
        name = ".".join(path.relative_to(package).with_suffix("").parts)
        if name.startswith(MODULES[reader]):
            lines[str(path)] = _lines_of(compile(path.read_text(), str(path), "exec"))
    seen: dict[str, set[int]] = {path: set() for path in lines}

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        reached = seen.get(frame.f_code.co_filename)
        if reached is None:
            return None
        if event == "line":
            reached.add(frame.f_lineno)
        return trace

    sys.settrace(trace)
    for data in inputs:
        read_one(reader, data)
    sys.settrace(None)
    reached = sum(len(lines[path] & seen[path]) for path in lines)
    return reached, sum(map(len, lines.values()))


_PNG = b"\x89PNG\r\n\x1a\n"


def sealed(data: bytes) -> bytes:
    """A PNG file with checksums that are right, so that readers look at what is behind them."""
    if not data.startswith(_PNG):
        return data
    made, at = bytearray(data), len(_PNG)
    while at + 12 <= len(made):
        (length,) = struct.unpack_from(">I", made, at)
        end = at + 8 + length
        if end + 4 > len(made):
            break
        struct.pack_into(">I", made, end, zlib.crc32(made[at + 4 : end]))
        at = end + 4
    return bytes(made)


def mutated(draw: random.Random, inputs: list[bytes]) -> bytes:
    """One of the inputs, changed in one to five places."""
    made = bytearray(draw.choice(inputs))
    for _ in range(draw.randint(1, 5)):
        at = draw.randint(0, len(made))
        size = draw.choice((1, 1, 2, 4, 8, 32))
        change = draw.randrange(6)
        if change == 0:
            made[at : at + size] = draw.randbytes(size)
        elif change == 1:
            made[at : at + size] = bytes([draw.choice((0, 1, 127, 128, 255))]) * size
        elif change == 2:
            del made[at : at + size]
        elif change == 3:
            made[at:at] = made[at : at + size]
        elif change == 4:
            other = draw.choice(inputs)
            begin = draw.randint(0, len(other))
            made[at : at + size] = other[begin : begin + size]
        elif draw.random() < 0.2:
            del made[at:]
    return sealed(bytes(made)) if draw.random() < 0.7 else bytes(made)


def mutate(reader: str, seconds: float) -> None:
    """Reads changed inputs for some seconds. What it fails with is written to a file whose name it
    says."""
    from seeds import write_seeds

    folder = ROOM / "seeds"
    folder.mkdir()
    write_seeds(reader, folder)
    inputs = [path.read_bytes() for path in sorted(folder.iterdir())]
    draw, end, count = random.Random(0), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = mutated(draw, inputs)
        count += 1
        try:
            read_one(reader, data)
        except BaseException:
            path = Path(f"crash-{zlib.crc32(data):08x}")
            path.write_bytes(data)
            print(f"{reader}: input {count} fails: {path}")
            raise
    print(f"{reader}: {count} inputs in {seconds:.0f} s, none fails")


def main() -> None:
    reader = sys.argv.pop(1)
    if sys.argv[1] == "--mutate":
        mutate(reader, float(sys.argv[2]))
    elif not FUZZES:
        inputs = [path.read_bytes() for path in sorted(Path(sys.argv[2]).iterdir())]
        reached, every = lines_reached(reader, inputs)
        print(f"{reached} of {every} lines ({reached / every:.0%})")
    else:
        atheris.Setup(sys.argv, lambda data: read_one(reader, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
