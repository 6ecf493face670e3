"""Makes gguf_control.json: llama.cpp's ids of a file all of whose tokens have the type NORMAL.

pip install --no-deps xllamacpp
python tests/golden/make_gguf_control_golden.py      # with what make_gguf_golden.py needs
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE))
sys.path.append(str(HERE.parent / "python" / "support"))
from make_gguf_golden import ids_of_llama_cpp  # noqa: E402
from tokenizer_texts import CHATS, TEXTS  # noqa: E402

KEY = b"tokenizer.ggml.token_type"
NORMAL = 1


def all_normal(data: bytes) -> bytes:
    """The GGUF file with another type of all tokens: an array of 32-bit integers."""
    begin = data.index(KEY) + len(KEY) + 4 + 4  # after the types of the value and its elements
    (count,) = struct.unpack_from("<Q", data, begin)
    types = struct.pack(f"<{count}i", *[NORMAL] * count)
    return data[: begin + 8] + types + data[begin + 8 + len(types) :]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "normal.gguf"
        path.write_bytes(all_normal((HERE / "gguf" / "qwen2.gguf").read_bytes()))
        ids = ids_of_llama_cpp(path, [*TEXTS, *CHATS])
    made = {"xllamacpp": version("xllamacpp"), "ids": ids}
    (HERE / "gguf_control.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
