"""Prompts that models of pages read beside an image: the tokens among which its rows stand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from packhorse.image.settings import Size

_AUGMENTED = 10  # tokens behind a question, whose vectors the model was trained to use
# By families of texts: what begins the prompt of an image, and a question.
_BEGINNINGS = {"colidefics3_text": ("<|im_start|>", "Query: ")}


class PagePrompts(Protocol):
    """`bare`: whether the tokenizer adds no tokens of its own to the text of an image."""

    bare: bool

    def of_image(self, grid: Size) -> str: ...
    def of_query(self, text: str) -> str: ...


@dataclass(frozen=True)
class WholePrompts:
    """Prompts of ColPali (Faysse et al., arXiv 2407.01449), of an image that is seen as a whole.

    `rows`: rows of an image, which stand before its text. `end`: what is written behind a question
    some times.
    """

    rows: int
    image: str
    query: str
    end: str
    bare = True

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        tokenizer: Mapping[str, Any],
        rows: int,
        adds_begin: bool,
    ) -> WholePrompts:
        """Reads a processor_config.json and a tokenizer_config.json. adds_begin: whether the
        tokenizer itself begins a question by its first token. Raises ValueError."""
        begin, end = (
            _token(tokenizer, "bos_token", "<bos>"),
            _token(tokenizer, "pad_token", "<pad>"),
        )
        image = config.get("visual_prompt_prefix", "Describe the image.")
        query = config.get("query_prefix", "Question: ")
        if not isinstance(image, str) or not isinstance(query, str):
            raise ValueError(
                f"visual_prompt_prefix is {image!r:.80}, query_prefix {query!r:.80}, expected texts"
            )
        return cls(rows, f"{begin}{image}\n", query if adds_begin else begin + query, end)

    def of_image(self, _grid: Size) -> str:
        return "<image>" * self.rows + self.image

    def of_query(self, text: str) -> str:
        return self.query + text + self.end * _AUGMENTED + "\n"


def _token(config: Mapping[str, Any], name: str, default: str) -> str:
    value = config.get(name) or default  # checked where the tokenizer was loaded
    return str(value["content"] if isinstance(value, Mapping) else value)


@dataclass(frozen=True)
class TilePrompts:
    """Prompts of ColModernVBERT (Teiletche et al., arXiv 2510.01149) and ColSmol.

    `image`: the text around an image, which stands for it as `<image>`. `query`: begins a question.
    `rows`: rows of a tile.
    """

    image: str
    query: str
    rows: int
    bare = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any], rows: int, family: str) -> TilePrompts:
        """Reads a processor_config.json; `rows` is what a tile becomes, `family` that of the spec
        of texts. Raises ValueError."""
        given = config.get("image_seq_len")
        if given is not None and given != rows:
            raise ValueError(f"image_seq_len is {given!r:.80}, but a tile becomes {rows} rows")
        begin, prefix = _BEGINNINGS.get(family, ("<|begin_of_text|>", ""))
        image = config.get("visual_prompt_prefix") or (
            f"{begin}User:<image>Describe the image.<end_of_utterance>\nAssistant:"
        )
        query = config.get("query_prefix") or prefix
        if not isinstance(image, str) or image.count("<image>") != 1 or not isinstance(query, str):
            raise ValueError(
                f"visual_prompt_prefix is {image!r:.80}, query_prefix {query!r:.80}, expected "
                "texts, the first with one <image>"
            )
        return cls(image, query, rows)

    def of_image(self, grid: Size) -> str:
        """The text of an image that was cut into `grid` tiles."""
        rows = "<image>" * self.rows
        text = ""
        for row in range(grid[0]):
            for column in range(grid[1]):
                text += f"<fake_token_around_image><row_{row + 1}_col_{column + 1}>{rows}"
            text += "\n"
        text += "\n" if grid[0] else ""
        whole = f"<fake_token_around_image><global-img>{rows}<fake_token_around_image>"
        return self.image.replace("<image>", text + whole)

    def of_query(self, text: str) -> str:
        return self.query + text + "<end_of_utterance>" * _AUGMENTED


def read_processor(folder: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """(processor_config.json, the settings of the image processor) of a folder. Raises
    ValueError."""
    whole, own = folder / "processor_config.json", folder / "preprocessor_config.json"
    config = read_config(whole) if whole.is_file() else {}
    images = read_config(own) if own.is_file() else config.get("image_processor")
    if not isinstance(images, dict):
        raise ValueError(f"{folder} has no settings of an image processor")
    return config, images


def read_config(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ValueError."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a JSON object")
    return config
