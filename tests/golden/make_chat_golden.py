"""Writes chat_templates.json: the prompts that transformers makes of the conversations of
tests/python/support/chat_cases.py, and of answers that are continued, where it does not refuse
them.

    python tests/golden/make_chat_golden.py      # with transformers
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python" / "support"))
from chat_cases import CASES, CONTINUED, FIXED_DATE, SPECIAL_TOKENS  # noqa: E402


def main() -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, "<s>")), **SPECIAL_TOKENS
    )

    def template_of(name: str) -> str:
        return (HERE / "chat_templates" / f"{name}.jinja").read_text("utf-8")

    prompts = {}
    for name, (template, messages, options) in CASES.items():
        rest = dict(options)
        arguments = {"add_generation_prompt": True} | rest.pop("template_args", {}) | rest
        prompts[name] = tokenizer.apply_chat_template(
            messages,
            chat_template=template_of(template),
            tokenize=False,
            **arguments,
        )
    continued: dict[str, str | None] = {}
    for name, (template, content) in CONTINUED.items():
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
        try:
            continued[name] = tokenizer.apply_chat_template(
                messages,
                chat_template=template_of(template),
                tokenize=False,
                continue_final_message=True,
                **FIXED_DATE,
            )
        except ValueError:
            continued[name] = None
    made = {
        "transformers": transformers.__version__,
        "prompts": prompts,
        "continued": continued,
    }
    text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    (HERE / "chat_templates.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
