"""Writes chat_templates.json: the prompts that transformers makes of the conversations of
tests/python/chat_cases.py.

    python tests/golden/make_chat_golden.py      # with transformers
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python"))
from chat_cases import CASES, SPECIAL_TOKENS  # noqa: E402


def main() -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, "<s>")), **SPECIAL_TOKENS
    )
    prompts = {}
    for name, (template, messages, options) in CASES.items():
        rest = dict(options)
        arguments = {"add_generation_prompt": True} | rest.pop("template_args", {}) | rest
        prompts[name] = tokenizer.apply_chat_template(
            messages,
            chat_template=(HERE / "chat_templates" / f"{template}.jinja").read_text("utf-8"),
            tokenize=False,
            **arguments,
        )
    made = {"transformers": transformers.__version__, "prompts": prompts}
    text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    (HERE / "chat_templates.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
