"""Images in the bodies of requests, by the forms that OpenAI, vLLM, Jina, Cohere and Hugging Face
have for them."""

from __future__ import annotations

from typing import Any, NamedTuple

from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import ANY_VALUE, Effectless, Fields, check_count
from packhorse.serve.http.exchange import Exchange
from packhorse.serve.models.image_inputs import ImageInput

_DATA = "data:image/"
_FORMS = (
    'a text, {"text": ...}, {"image": ...}, {"type": "image_url", "image_url": {"url": ...}}, or '
    '{"content": [...]} with one of them'
)
_KINDS = ("text", "input_text", "image", "image_url", "input_image")
_HARMLESS: Effectless = {"image_url.detail": ANY_VALUE, "role": ("user",)}
Item = str | ImageInput


class Mixed(NamedTuple):
    """Texts and images of a request, in order."""

    items: list[Item]
    single: bool = False

    @property
    def texts(self) -> list[str]:
        return [one for one in self.items if isinstance(one, str)]

    @property
    def images(self) -> list[ImageInput]:
        return [one for one in self.items if isinstance(one, ImageInput)]


def read_mixed(name: str, value: Any, *, urls_are_images: bool) -> Mixed | None:
    """Texts and images of a field; None where it holds neither objects nor, if texts that are data
    URLs stand for images, such texts. Raises ServeError."""
    values = value if isinstance(value, list) else [value]
    if not any(isinstance(one, dict) or (urls_are_images and _is_data(one)) for one in values):
        return None
    single = not isinstance(value, list)
    items = [
        _item(one, name if single else f"{name}[{i}]", urls_are_images)
        for i, one in enumerate(values)
    ]
    return Mixed(items, single)


def _is_data(value: object) -> bool:
    return isinstance(value, str) and value.startswith(_DATA)


def _item(value: Any, where: str, urls_are_images: bool, *, part: bool = False) -> Item:
    """A text or an image. part: whether it stands within the content of another object."""
    if isinstance(value, str):
        return ImageInput(where, value) if urls_are_images and _is_data(value) else value
    if not isinstance(value, dict):
        raise ServeError("validation", f"{where}: expected {_FORMS}", parameter=where)
    fields = Fields(value, f"{where}.")
    parts = None if part else fields.get("content")
    if parts is not None:
        fields.refuse_rest(_harmless(where))
        if isinstance(parts, str):
            return parts
        if not isinstance(parts, list) or len(parts) != 1:
            fields.wrong("content", "a list with one text or one image: each has its own vector")
        return _item(parts[0], f"{where}.content[0]", urls_are_images, part=True)
    kind = fields.choice("type", _KINDS, "")
    found = [name for name in ("text", "image", "image_url") if fields.get(name) is not None]
    if len(found) != 1 or (kind and ("text" in kind) != (found == ["text"])):
        raise ServeError("validation", f"{where}: expected {_FORMS}", parameter=where)
    (name,) = found
    if name == "image_url" and isinstance(fields.get(name), dict):
        table = fields.table(name)
        assert table is not None
        content = table.text("url")
        where_image = table.full_name("url")
    else:
        content, where_image = fields.text(name), fields.full_name(name)
    fields.refuse_rest(_harmless(where))
    return content if name == "text" else ImageInput(where_image, content)


def _harmless(where: str) -> Effectless:
    return {f"{where}.{name}": values for name, values in _HARMLESS.items()}


def read_images(fields: Fields, name: str, most: int) -> tuple[list[ImageInput], bool]:
    """(the images of a field: data URLs, URLs or base64, whether one stands by itself)"""
    value = fields.get(name)
    full = fields.full_name(name)
    if isinstance(value, str):
        return [ImageInput(full, value)], True
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        fields.wrong(name, "an image as a data URL or in base64, or a list of them")
    check_count(full, len(value), most)
    return [ImageInput(f"{full}[{i}]", one) for i, one in enumerate(value)], False


def check_images(exchange: Exchange, name: str, images: list[ImageInput]) -> None:
    """Raises ServeError for more images than are taken."""
    most = exchange.service.settings.max_client_images
    if len(images) > most:
        raise ServeError(
            "too_large",
            f"{name} has {len(images)} images, at most {most} are taken",
            parameter=name,
        )
