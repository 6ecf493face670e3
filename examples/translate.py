"""Translates the lines of a file, and says how many characters a second that were.

python examples/translate.py lines.txt --model Helsinki-NLP/opus-mt-de-en
python examples/translate.py lines.txt --model facebook/nllb-200-distilled-600M --from de --to fr
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import packhorse


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="Helsinki-NLP/opus-mt-de-en")
    parser.add_argument("--from", dest="source", help="language of the file, such as de")
    parser.add_argument("--to", dest="target", help="language that is wanted, such as fr")
    parser.add_argument("--beams", type=int, help="by default as the model's files say")
    arguments = parser.parse_args()

    lines = arguments.file.read_text(encoding="utf-8").splitlines()
    with packhorse.TextModel.load(arguments.model, kv_tokens=16384) as model:
        start = time.perf_counter()
        translations = model.translate(
            lines,
            source=arguments.source,
            target=arguments.target,
            num_beams=arguments.beams,
        )
        seconds = time.perf_counter() - start
    print("\n".join(translations))
    print(f"[{sum(map(len, lines)) / seconds:,.0f} characters/s]", file=sys.stderr)


if __name__ == "__main__":
    main()
