"""PageModel: pages and questions in, several vectors of each out, for late interaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from packhorse_weights.spec import stem_of

from packhorse.encoder_session import EncoderSession
from packhorse.image.decoding import ImageSource, decode
from packhorse.image.processor import ImageProcessor
from packhorse.image.prompts import (
    PagePrompts,
    TilePrompts,
    WholePrompts,
    read_config,
    read_processor,
)
from packhorse.image.settings import Backend, ImageSettings, Size
from packhorse.image.tiles import TileSettings
from packhorse.load_options import LoadOptions, ModelPath
from packhorse.named_errors import named
from packhorse.names import AskedDtype
from packhorse.option_fields import takes_options
from packhorse.packing import Int32Array, batch_ranges, pack
from packhorse.patches import PackedPatches
from packhorse.progress_bar import shows_loading
from packhorse.result import FloatArray
from packhorse.retrieval import late_interaction
from packhorse.text.checks import as_texts, check_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.load_options import LoadCall
    from packhorse.text import TextModel

Self = TypeVar("Self", bound="PageModel")
# Options of both halves of a model.
_SHARED = ("threads", "pin_threads", "attention_algorithm")


class PageModel:
    """A model that makes vectors of images of pages and of questions: ColModernVBERT, ColPali,
    ColSmol. Made by `load`.

    An encoder of images makes rows of a page, which are input of a language model among the tokens
    of a prompt; a vector comes from each. Results do not depend on what else is in a list. Any
    number of threads may use one model.
    """

    def __init__(
        self,
        images: EncoderSession,
        texts: TextModel,
        cut: TileSettings | ImageSettings,
        prompts: PagePrompts,
        backend: Backend = "torchvision",
    ) -> None:
        """cut: how images become tiles, or one image."""
        self.images = images
        self.texts = texts
        self._tiles = cut if isinstance(cut, TileSettings) else None
        self._prompts, self._backend = prompts, backend
        values = cut.values if isinstance(cut, TileSettings) else cut
        self._processor = ImageProcessor(values, backend=backend)
        self._shuffle = int(images.config["pages"]["shuffle"])
        self._patch = int(images.config["image"]["patch_size"])

    @classmethod
    @shows_loading
    @takes_options(LoadOptions)
    def load(
        cls: type[Self],
        path: ModelPath,
        device: str = "cpu",
        dtype: AskedDtype | None = None,
        *,
        backend: Backend = "torchvision",
        progress: bool | None = None,
        **options: Unpack[LoadCall],
    ) -> Self:
        """Loads both halves of a model of pages.

        {options}
        backend          the bits of pixels, as of `ImageProcessor`

        `max_tokens` and `max_sequences` are those of the encoder of images, whose sequences are
        tiles. The other arguments are those of `Session.load`. Raises as that does, and ValueError
        for a model of another kind.
        """
        from packhorse_weights import find_model

        from packhorse.text import TextModel

        asked = LoadOptions(device=device, dtype=dtype, **options)
        path = Path(find_model(path, asked.revision))
        asked = replace(asked, revision=None)
        config, settings = read_processor(path)
        images = EncoderSession._load(path, asked)
        if "pages" not in images.config:
            raise ValueError(
                f"{path} makes no vectors of pages: load it by packhorse.image.ImageModel"
            )
        patch = int(images.config["image"]["patch_size"])
        given = {name: getattr(asked, name) for name in _SHARED}
        cut: TileSettings | ImageSettings
        if images.config["pages"]["tiles"]:
            cut = TileSettings.from_config(settings)
            shuffle = int(images.config["pages"]["shuffle"])
            prompts: PagePrompts
            texts = TextModel.load(path, asked.device, asked.dtype, tower="text", **given)
            rows = _rows_of((cut.tile, cut.tile), patch, shuffle)
            family = str(texts.session.config["family"])
            prompts = TilePrompts.from_config(config, rows, family)
        else:
            cut = ImageSettings.from_config(settings)
            rows = _rows_of(cut.fixed_size, patch, 1)
            if (stated := settings.get("image_seq_length", rows)) != rows:
                raise ValueError(
                    f"image_seq_length is {stated!r:.80}, but an image has {rows} rows"
                )
            texts = TextModel.load(path, asked.device, asked.dtype, tower="text", **given)
            prompts = WholePrompts.from_config(
                config, _tokenizer_config(path), rows, _adds_begin(texts)
            )
        return cls(images, texts, cut, prompts, backend)

    @property
    def vector_size(self) -> int:
        """The number of columns of vectors."""
        return self.texts.encoder_session.outputs["vectors"].columns

    def embed_images(self, images: Sequence[ImageSource] | ImageSource) -> list[FloatArray]:
        """A vector for each token of each image, those of the prompt too: a list of float32
        [tokens, size], of length 1 each. `packhorse.image.decode` says what an image may be.
        Raises ValueError as that does, and for an image of more tokens than a batch of
        `texts` holds."""
        self.images.check_open()
        sources: list[ImageSource]
        sources = list(images) if isinstance(images, list | tuple) else [images]  # type: ignore[list-item]
        found = []
        for number, source in enumerate(sources):
            try:
                tiles, grid = self._cut(decode(source))
            except (ValueError, TypeError) as error:
                raise named(error, f"image {number}") from error
            ids = self._ids(grid)
            rows = self._rows(tiles)
            result = self.texts.encoder_session.run(pack([ids]), "vectors", features=rows)
            found.append(result.vectors)
        return found

    def _cut(self, image: Any) -> tuple[Sequence[Any], Size]:
        if self._tiles is None:
            return [image], (0, 0)
        return self._tiles.cut(image, self._backend, 0)

    def _ids(self, grid: Size) -> Int32Array:
        tokenizer = self.texts.tokenizer
        vocabulary = int(stem_of(self.texts.session.config)["vocab_size"])
        session = self.texts.encoder_session
        longest = min(session.max_seqlen, session.max_tokens)
        text = self._prompts.of_image(grid)
        if self._prompts.bare:
            ids = tokenizer.plain_ids(text)
            if len(ids) > longest or ids.max(initial=0) >= vocabulary:
                raise ValueError(
                    f"an image has {len(ids)} tokens of up to {ids.max(initial=0)}, but a batch "
                    f"holds {longest}, and the vocabulary has {vocabulary}"
                )
            return ids
        tokens = tokenizer.encode([text], longest, first=0, table=vocabulary, truncation=False)
        return tokens.ids[0]

    def _rows(self, tiles: Sequence[Any]) -> FloatArray:
        """The rows of tiles as the language model takes them."""
        patches = self._processor.patches(list(tiles), self._patch)
        batch = PackedPatches(patches.features, patches.grids)
        session = self.images
        offsets = batch.offsets(0).tolist()
        limits = session.max_tokens, session.max_sequences
        made = []
        for first, last in batch_ranges((offsets, range(batch.num_images + 1)), limits):
            hidden = session.run(batch[first:last], "hidden").hidden
            made.append(shuffled(hidden, batch.grids[first:last], self._shuffle))
        return np.concatenate(made)

    def embed_queries(self, queries: str | Iterable[str]) -> Any:
        """A vector for each token of each question, with the tokens that the model adds: a list of
        float32 [tokens, size]; of a single str, its own. Raises ValueError for what is no text."""
        if isinstance(queries, str):
            return self.texts.embed_tokens(self._prompts.of_query(queries))
        written = []
        for i, query in enumerate(as_texts(queries, "queries")):
            check_text(query, i, "", False, "queries")
            written.append(self._prompts.of_query(query))
        return self.texts.embed_tokens(written)

    def score(self, queries: Sequence[FloatArray], pages: Sequence[FloatArray]) -> FloatArray:
        """Scores of each page for each question: float32 [queries, pages], of the vectors of
        both (`packhorse.late_interaction`)."""
        made = [[late_interaction(query, page) for page in pages] for query in queries]
        return np.array(made, np.float32).reshape(len(queries), len(pages))

    def close(self) -> None:
        """Closes the sessions (`Session.close`)."""
        self.images.close()
        self.texts.close()

    def __enter__(self: Self) -> Self:
        self.images.check_open()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.images!r}, {self.texts.session!r})"


def _rows_of(size: Size | None, patch: int, shuffle: int) -> int:
    """Rows of an image of this size, in pixels, after neighbours became one. Raises ValueError."""
    if size is None:
        raise ValueError("the image processor makes images of many sizes, expected one")
    rows, columns = (side // patch for side in size)
    if rows % shuffle or columns % shuffle or not rows or not columns:
        raise ValueError(f"a tile has {rows} x {columns} patches, expected multiples of {shuffle}")
    return (rows // shuffle) * (columns // shuffle)


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_config(path) if path.is_file() else {}


def _adds_begin(texts: TextModel) -> bool:
    """True if the tokenizer puts its first token before a text. Raises ValueError where it adds
    others: a question of ColPali ends otherwise."""
    added = texts.tokenizer.encode([""], None).ids[0]
    if len(added) > 1:
        raise ValueError(f"the tokenizer adds {len(added)} tokens to a text, expected at most one")
    return len(added) == 1


def shuffled(rows: FloatArray, grids: Int32Array, factor: int) -> FloatArray:
    """Squares of factor x factor rows of each grid as one, side by side: float32 [T, E] -> [T /
    factor^2, E factor^2] (Shi et al., arXiv 1609.05158, the other way round). Sides of grids are
    multiples of `factor`."""
    width, made, begin = rows.shape[1], [], 0
    for height, columns in grids.tolist():
        one = rows[begin : begin + height * columns]
        begin += height * columns
        cells = one.reshape(height // factor, factor, columns // factor, factor, width)
        made.append(cells.transpose(0, 2, 1, 3, 4).reshape(-1, factor * factor * width))
    return np.concatenate(made) if made else np.empty((0, factor * factor * width), np.float32)
