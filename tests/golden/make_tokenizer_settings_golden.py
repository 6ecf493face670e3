"""Makes tokenizer_settings.json: what transformers makes of the folders of
tests/python/support/tokenizer_settings_cases.py.

    python tests/golden/make_tokenizer_settings_golden.py      # with transformers, sentencepiece

Run once with transformers 4.57 and once with 5: each run writes its part of the file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
import transformers

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python" / "support"))
from tokenizer_settings_cases import CASES, TEMPLATE, TEXTS, write_case  # noqa: E402

CHAT = [{"role": "user", "content": "x"}]


def result(folder: Path) -> dict[str, Any] | str:
    """The ids and the prompt, or the name of the error."""
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
        prompt = theirs.apply_chat_template(CHAT, chat_template=TEMPLATE, tokenize=False)
        return {"ids": [theirs(text)["input_ids"] for text in TEXTS], "prompt": prompt}
    except Exception as error:  # whatever it fails with
        return type(error).__name__


def main() -> None:
    path = HERE / "tokenizer_settings.json"
    found = json.loads(path.read_text()) if path.is_file() else {}
    version = transformers.__version__
    results = {}
    for kind, setting in CASES:
        with tempfile.TemporaryDirectory() as folder:
            results[f"{kind}: {setting}"] = result(write_case(Path(folder) / "case", kind, setting))
    found[version.split(".")[0]] = {
        "versions": {"transformers": version, "tokenizers": tokenizers.__version__},
        "results": results,
    }
    text = json.dumps(found, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
