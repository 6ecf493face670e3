"""Models that say what a test has them say, by the templates of families that call tools."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checkpoints import GOLDEN
from fake_engine import byte_level, fake_session
from packhorse import TextModel
from packhorse.text import TextTokenizer
from packhorse_weights.generation_files import GenerationFiles

SPECIAL = ("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|im_start|>", "</s>")
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Ur", "Uz"]}},
            "required": ["city"],
        },
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time"}}


class Speaker(TextModel):
    """`says`: what the answer is. Where a form is asked for, it is drawn instead."""

    says: str

    @property
    def prompt(self) -> str:
        """The prompt of the last request."""
        engine: Any = self.session._engine  # type: ignore[attr-defined]
        return self.tokenizer.decode(engine.submitted[-1]._prompt, skip_special=False)


def speaker(template: str, says: str = "") -> Speaker:
    """`template`: of tests/golden/chat_templates, or the text of one."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(str(Path(folder) / "tokenizer.json"))
        ours = TextTokenizer.load(folder)
    end = ours.id_of("</s>")
    assert end is not None

    def script(_prompt: list[int], _number: int) -> Iterator[int]:
        yield from ours.plain_ids(made.says).tolist()
        yield end

    path = GOLDEN / "chat_templates" / f"{template}.jinja"
    text = template if "{" in template else path.read_text("utf-8")
    files = GenerationFiles((end,), {}, {"default": text}, {"bos_token": "", "eos_token": ""})
    session = fake_session(script, tokenizer.get_vocab_size(), eos_ids=[end], max_context=20_000)
    made = Speaker(session, ours, files=files)
    made.says = says
    return made


def agent() -> Speaker:
    """Always asks for the weather, by a call of Qwen's form."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ur"}}\n</tool_call>'
    return speaker("qwen3", call)
