"""The text that a generative reranker reads a pair in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from packhorse.text.tokenization.tokenizer import Frame, TextTokenizer

_PLACE = re.compile(r"(\{(?:instruction|query|document)\})")


class Template(NamedTuple):
    """`prefix` and `suffix` are never cut, and made tokens by themselves, as they stand."""

    prefix: str
    text: str
    suffix: str
    instruction: str  # where the caller gives none

    @property
    def takes_instruction(self) -> bool:
        return "{instruction}" in self.text

    def write(self, query: str, document: str, instruction: str) -> str:
        """The text between prefix and suffix. Braces in the three texts mean nothing."""
        texts = {"{query}": query, "{document}": document, "{instruction}": instruction}
        return "".join(texts.get(part, part) for part in _PLACE.split(self.text))

    def frame(self, tokenizer: TextTokenizer) -> Frame:
        return Frame(tokenizer.plain_ids(self.prefix), tokenizer.plain_ids(self.suffix))


def find_template(config: Mapping[str, Any]) -> Template | None:
    """The template of a spec; None: it has none. Raises ValueError for one that is not usable."""
    fields = config.get("template")
    if fields is None:
        return None
    names = Template._fields
    if (
        not isinstance(fields, dict)
        or fields.keys() != {*names}
        or not all(isinstance(fields[name], str) for name in names)
    ):
        raise ValueError(
            f"score: spec: 'template' is {fields!r:.120}, expected texts: {', '.join(names)}"
        )
    return Template(**fields)
