"""Contents of messages in the form that a chat template reads: a text, or a list of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packhorse.text.generation.template_uses import TemplateUses

# Types of parts that are text -> the field that has it.
TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}


def text_parts(content: Any, name: str) -> list[str]:
    """The texts of a list of parts. Raises ValueError for what is no text, by its type; `name`:
    what messages call the content."""
    if not isinstance(content, Sequence) or isinstance(content, str | bytes):
        raise ValueError(f"{name} is {content!r:.80}, expected a text or a list of parts of text")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type", "text") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind not in TEXT_PARTS:
            raise ValueError(
                f"{name}[{i}] is of type {kind!r:.40}, which is not supported: expected text"
            )
        text = part.get(TEXT_PARTS[kind]) if isinstance(kind, str) else part
        if not isinstance(text, str):
            raise ValueError(
                f'{name}[{i}] is {part!r:.80}, expected {{"type": "text", "text": ...}}'
            )
        texts.append(text)
    return texts


def with_contents_for(
    uses: TemplateUses, messages: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Messages with contents that the template reads, and without fields that are None, which
    templates take for values. Parts are joined by line breaks for a template that takes texts; for
    one that takes nothing but parts, a text is a list of one."""
    found = []
    for i, message in enumerate(messages):
        made = {key: value for key, value in message.items() if value is not None}
        content = made.get("content")
        if isinstance(content, str):
            if uses.takes_parts and not uses.checks_kind:
                made["content"] = [{"type": "text", "text": content}]
        elif content is not None:
            texts = text_parts(content, f"messages[{i}].content")
            parts = [{"type": "text", "text": text} for text in texts]
            made["content"] = parts if uses.takes_parts else "\n".join(texts)
        found.append(made)
    return found
