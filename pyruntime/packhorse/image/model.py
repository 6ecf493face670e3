"""ImageModel: images in, vectors, labels and similarities with texts out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from packhorse_weights.spec import stem_of

from packhorse.encoder_session import EncoderSession
from packhorse.load_options import LoadOptions, ModelPath
from packhorse.names import AskedDtype, OutputName
from packhorse.option_fields import takes_options
from packhorse.packing import batch_ranges
from packhorse.patches import PackedPatches
from packhorse.progress_bar import shows_loading
from packhorse.result import FloatArray
from packhorse.text.tasks.labels import Label, best_labels, default_activation, softmax

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


def _sigmoid(x: FloatArray) -> FloatArray:
    return (1 / (1 + np.exp(-x))).astype(np.float32)


_ACTIVATIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "softmax": softmax,
    "sigmoid": _sigmoid,
    "none": lambda logits: logits,
}


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
        from packhorse_weights import find_model

        asked = LoadOptions(device=device, dtype=dtype, **options)
        path = find_model(path, asked.revision)
        asked = replace(asked, revision=None)
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
    def texts(self) -> TextModel:
        """The model of texts. Raises ValueError where the checkpoint has none."""
        with self._loading:
            if self._texts is None:
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
        made = self.processor.patches(_as_list(images), size)
        return PackedPatches(made.features, made.grids)

    def _run(self, images: Images, output: OutputName) -> FloatArray:
        """Rows of an output, in as few batches as the session's plan allows."""
        session = self.session
        session.check_open()
        if not isinstance(images, PackedPatches):
            images = _as_list(images)
        found = [np.empty((0, session.outputs[output].columns), np.float32)]
        size = session.max_sequences
        count = images.num_images if isinstance(images, PackedPatches) else len(images)
        for begin in range(0, count, size):
            batch = self.patches(images[begin : begin + size])
            offsets = batch.offsets(stem_of(session.config).get("prefix", 0))
            ends = offsets.tolist(), range(batch.num_images + 1)
            limits = session.max_tokens, session.max_sequences
            for first, last in batch_ranges(ends, limits):
                found.append(session.run(batch[first:last], outputs=[output])[output])
        return np.concatenate(found)

    def embed(self, images: Images) -> FloatArray:
        """Embeddings float32 [images, dims]. Those of models of images and texts have length 1."""
        return self._run(images, "embedding")

    def classify(self, images: Images, top_k: int | None = 5) -> list[list[Label]]:
        """The `top_k` best labels of each image with their probabilities, best first; None: all of
        them. Raises ValueError for a model without a classifier."""
        _check_top_k(top_k)
        classifier = self.session.config.get("heads", {}).get("classifier")
        if classifier is None:
            hint = ": use zero_shot" if self._load_texts is not None else ""
            raise ValueError(f"classify: this model has no classifier of images{hint}")
        scores = _ACTIVATIONS[default_activation(classifier)](self._run(images, "logits"))
        return best_labels(self.labels, scores, top_k)

    def similarity(self, images: Images, texts: Sequence[str] | str) -> FloatArray:
        """Scores of each text for each image, float32 [images, texts]: the cosine of their
        embeddings, times the model's scale, plus its bias (`logits_per_image` of transformers)."""
        model = self.texts
        rows = [texts] if isinstance(texts, str) else list(texts)
        fields = self.session.config["similarity"]
        vectors = model.embed(rows)
        cosines = self.embed(images) @ vectors.T
        found: FloatArray = cosines * np.float32(fields["scale"]) + np.float32(fields["bias"])
        return found

    def zero_shot(
        self,
        images: Images,
        labels: Sequence[str],
        *,
        template: str = "a photo of a {}",
        top_k: int | None = None,
    ) -> list[list[Label]]:
        """The labels of each image, best first, by how well the text of each suits the image.

        template  makes a text of a label, which stands for {}
        top_k     number of labels; None: all of them

        Scores are probabilities: of models trained with a softmax they sum up to 1 over `labels`,
        of others each label has one of its own.
        """
        _check_top_k(top_k)
        names = list(labels)
        if not names or not all(isinstance(one, str) for one in names):
            raise ValueError(f"labels is {labels!r:.80}, expected one text or more")
        if "{}" not in template:
            raise ValueError(f"template is {template!r:.80}, expected {{}} where the label goes")
        logits = self.similarity(images, [template.replace("{}", one) for one in names])
        return best_labels(names, _ACTIVATIONS[self._score](logits), top_k)

    @property
    def _score(self) -> str:
        return str(self.session.config["similarity"]["score"])

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
    if isinstance(images, str | bytes) or not isinstance(images, Iterable):
        raise ValueError(f"images is a {type(images).__name__}, expected a list of images")
    return list(images)


def _check_top_k(top_k: int | None) -> None:
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}, expected a positive number or None")


def _own_processor(path: Path) -> Processor | None:
    """The package's processor, as the folder's files say; None where there are none."""
    if not path.is_dir() or not (path / "preprocessor_config.json").is_file():
        return None
    try:
        module = import_module("packhorse.image.processor")
    except ModuleNotFoundError:
        return None
    made: Processor = module.ImageProcessor.from_folder(path)
    return made
