"""ImageModel: images in, vectors, labels and similarities with texts out."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from packhorse_weights.spec import hears, sees, stem_of

from packhorse.encoder_session import EncoderSession
from packhorse.image.zero_shot import (
    ACTIVATIONS,
    DEFAULT_TEMPLATE,
    label_scores,
    label_texts,
    similarities,
)
from packhorse.load_options import LoadOptions, ModelPath
from packhorse.named_errors import named, with_message
from packhorse.names import AskedDtype, OutputName
from packhorse.option_fields import takes_options
from packhorse.packing import batch_ranges
from packhorse.patches import PackedPatches, packed
from packhorse.progress_bar import Progress, reporting, shows_loading
from packhorse.result import FloatArray
from packhorse.text.checks import as_texts
from packhorse.text.streaming import prepare_ahead
from packhorse.text.tasks.labels import Label, best_labels, check_top_k, default_activation

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.load_options import LoadCall
    from packhorse.text import TextModel

Self = TypeVar("Self", bound="ImageModel")
Images = Sequence[Any] | PackedPatches


class Processor(Protocol):
    """Makes patches of images, as the model's files say."""

    def patches(self, images: Any, patch_size: int) -> Any:
        """An object with `features` and `grids`, as of `PackedPatches`."""
        ...


class ImageModel:
    """A session that runs images, how they are made patches, and the model of texts beside it,
    where the checkpoint has one. Made by `load`.

    Images are a list of what the processor takes (paths, bytes, arrays, Pillow's images), or
    `PackedPatches` that are made already; of any sizes that the model takes, in any number. Results
    do not depend on what else is in the list. Any number of threads may use one model.
    """

    def __init__(
        self,
        session: EncoderSession,
        processor: Processor | None = None,
        load_texts: Callable[[], TextModel] | None = None,
    ) -> None:
        """`processor`: None where images come as `PackedPatches`. `load_texts`: loads the model of
        texts when it is first asked for; None: there is none."""
        if not session.takes_patches:
            raise ValueError(
                "this model takes token ids and no images: load it by packhorse.TextModel"
            )
        self.session = session
        self.processor = processor
        self._load_texts = load_texts
        self._texts: TextModel | None = None
        self._loading = threading.Lock()

    @classmethod
    @shows_loading
    @takes_options(LoadOptions)
    def load(
        cls: type[Self],
        path: ModelPath,
        device: str = "cpu",
        dtype: AskedDtype | None = None,
        *,
        processor: Processor | None = None,
        progress: bool | None = None,
        **options: Unpack[LoadCall],
    ) -> Self:
        """Loads a model of images. The model of texts beside it is loaded when it is needed first.

        {options}
        processor        makes patches of images; None: as the files say, where the package has
                         its own

        The other arguments are those of `Session.load`. Raises as that does.
        """
        from packhorse_weights import find_model, inspect_checkpoint

        asked = LoadOptions(device=device, dtype=dtype, **options)
        path = find_model(path, asked.revision)
        asked = replace(asked, revision=None)
        spec = inspect_checkpoint(path, **asked.reading()).spec
        if not sees(spec):
            raise ValueError(
                f"{path} takes no images: load it by packhorse."
                f"{'audio.AudioModel' if hears(spec) else 'TextModel'}"
            )
        session = EncoderSession._load(path, asked)
        if processor is None:
            processor = _own_processor(path)
        has_texts = "similarity" in session.config

        def load_texts() -> TextModel:
            from packhorse.text import TextModel

            given = {name: getattr(asked, name) for name in _SHARED}
            return TextModel.load(path, asked.device, asked.dtype, tower="text", **given)

        return cls(session, processor, load_texts if has_texts else None)

    @property
    def has_texts(self) -> bool:
        """True where the checkpoint has a model of texts, too."""
        return self._load_texts is not None

    @property
    def texts(self) -> TextModel:
        """The model of texts. Raises ValueError where the checkpoint has none, and RuntimeError
        after `close`."""
        with self._loading:
            if self._texts is None:
                self.session.check_open()
                if self._load_texts is None:
                    raise ValueError("this model knows images only, and has no model of texts")
                self._texts = self._load_texts()
            return self._texts

    @property
    def labels(self) -> list[str]:
        """The labels of the model's classifier; empty where it has none."""
        return self.session.labels

    def patches(self, images: Images) -> PackedPatches:
        """The images as the session takes them."""
        if isinstance(images, PackedPatches):
            return images
        if self.processor is None:
            raise ValueError(
                "this model was loaded without a processor of images: give PackedPatches, or load "
                "it with processor="
            )
        size = int(self.session.config["image"]["patch_size"])
        return packed(self.processor.patches(_as_list(images), size), size)

    def _run(
        self, images: Images, output: OutputName, progress: Progress | None = False
    ) -> FloatArray:
        """Rows of an output, in as few batches as the session's plan allows. The next images are
        made patches while a batch runs."""
        session = self.session
        session.check_open()
        found = [np.empty((0, session.outputs[output].columns), np.float32)]
        size = session.max_sequences
        done = 0
        with reporting(progress, "images") as report:
            for batch, total in self._batches(images, size):
                offsets = batch.offsets(stem_of(session.config).get("prefix", 0))
                ends = offsets.tolist(), range(batch.num_images + 1)
                limits = session.max_tokens, session.max_sequences
                for first, last in batch_ranges(ends, limits):
                    found.append(session.run(batch[first:last], outputs=[output])[output])
                    done += last - first
                    if report is not None:
                        report(done, total)
        return np.concatenate(found)

    def _batches(self, images: Images, size: int) -> Iterator[tuple[PackedPatches, int]]:
        """The images in chunks of up to `size`, each with the number of all images."""
        if isinstance(images, PackedPatches):
            for begin in range(0, images.num_images, size):
                yield images[begin : begin + size], images.num_images
            return
        sources = _as_list(images)

        def prepare(some: list[Any], first: int) -> PackedPatches:
            try:
                return self.patches(some)
            except (ValueError, TypeError) as error:
                raise _counted_from(first, error, len(some), len(sources)) from error

        for _, batch in prepare_ahead(sources, size, prepare):
            yield batch, len(sources)

    def embed(self, images: Images, *, progress: Progress | None = None) -> FloatArray:
        """Embeddings float32 [images, dims]. Those of models of images and texts have length 1.

        progress  as of `TextModel.embed`: a function of (images done, images in total), True or
                  False; None: a bar, where stderr is a terminal and it takes long
        """
        return self._run(images, "embedding", progress)

    def classify(
        self, images: Images, top_k: int | None = 5, *, progress: Progress | None = None
    ) -> list[list[Label]]:
        """The `top_k` best labels of each image with their probabilities, best first; None: all of
        them. Raises ValueError for a model without a classifier."""
        scores = self.scores_of(self._run(images, self._check_classify(top_k), progress))
        return best_labels(self.labels, scores, top_k)

    def _check_classify(self, top_k: int | None) -> OutputName:
        check_top_k(top_k)
        if self.session.config.get("heads", {}).get("classifier") is None:
            hint = ": use zero_shot" if self._load_texts is not None else ""
            raise ValueError(f"classify: this model has no classifier of images{hint}")
        return "logits"

    def scores_of(self, logits: FloatArray, activation: str | None = None) -> FloatArray:
        """Scores of the classifier's logits [images, labels]. activation: "softmax", "sigmoid" or
        "none"; None: the function that makes them probabilities."""
        classifier = self.session.config["heads"]["classifier"]
        return ACTIVATIONS[activation or default_activation(classifier)](logits)

    def similarity(
        self, images: Images, texts: Sequence[str] | str, *, progress: Progress | None = None
    ) -> FloatArray:
        """Scores of each text for each image, float32 [images, texts]: the cosine of their
        embeddings, times the model's scale, plus its bias (`logits_per_image` of transformers)."""
        rows = list(as_texts(texts))
        vectors = self.texts.embed(rows)
        return similarities(self.session.config, self.embed(images, progress=progress), vectors)

    def zero_shot(
        self,
        images: Images,
        labels: Sequence[str],
        *,
        template: str = DEFAULT_TEMPLATE,
        top_k: int | None = None,
        progress: Progress | None = None,
    ) -> list[list[Label]]:
        """The labels of each image, best first, by how well the text of each suits the image.

        template  makes a text of a label, which stands for {}
        top_k     number of labels; None: all of them

        Scores are probabilities: of models trained with a softmax they sum up to 1 over `labels`,
        of others each label has one of its own.
        """
        check_top_k(top_k)
        names = labels if isinstance(labels, str) else list(as_texts(labels, "labels"))
        written = label_texts(names, template)
        vectors = self.texts.embed(written)
        rows = self.embed(images, progress=progress)
        return best_labels(list(names), label_scores(self.session.config, rows, vectors), top_k)

    def close(self) -> None:
        """Closes the sessions (`Session.close`)."""
        self.session.close()
        with self._loading:
            if self._texts is not None:
                self._texts.close()

    def __enter__(self: Self) -> Self:
        self.session.check_open()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session!r})"


# Options of both models of a checkpoint; sizes of batches are those of images.
_SHARED = ("threads", "pin_threads", "attention_algorithm")


def _as_list(images: Any) -> list[Any]:
    if isinstance(images, np.ndarray):
        if images.ndim != 4:
            raise ValueError(
                f"images is an array {list(images.shape)}, expected a list of images, or an array "
                "[images, height, width, channels]"
            )
        return list(images)
    unfit = (str, bytes, bytearray, memoryview, Mapping, Set)
    if isinstance(images, unfit) or not isinstance(images, Iterable):
        raise ValueError(f"images is a {type(images).__name__}, expected a list of images")
    return list(images)


def _counted_from(first: int, error: Exception, count: int, total: int) -> Exception:
    """An error about image i of a chunk of `count` images, as one about image `first` + i of all. A
    processor gives no number to an image that is alone."""
    number, numbered, message = str(error).partition(": ")
    found = re.fullmatch(r"image (\d+)", number)
    if found is not None and numbered:
        return with_message(error, f"image {first + int(found[1])}: {message}")
    if count > 1 or total == 1:
        return with_message(error, str(error))
    return named(error, f"image {first}")


_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def _own_processor(path: Path) -> Processor | None:
    """The package's processor, as the folder's files say; None where there are none."""
    if not any((path / name).is_file() for name in _PROCESSOR_FILES):
        return None
    try:
        module = import_module("packhorse.image.processor")
    except ModuleNotFoundError:
        return None
    made: Processor = module.ImageProcessor.from_folder(path)
    return made
