"""Labels of images by the schemas of Hugging Face's Inference API."""

from __future__ import annotations

from typing import Any

from packhorse.image.zero_shot import DEFAULT_TEMPLATE, label_scores, label_texts
from packhorse.result import FloatArray
from packhorse.serve.http.checks import Fields, Inputs
from packhorse.serve.http.exchange import Exchange, Reply, compute_headers, json_reply
from packhorse.serve.http.limits import check_words
from packhorse.serve.models.image_inputs import ImageInput
from packhorse.serve.models.images import ImageReading, ServedImages
from packhorse.serve.models.served import AnyTask, Outcome
from packhorse.serve.openapi.effectless import OF_TEXTS
from packhorse.serve.protocols.cut import Cut
from packhorse.serve.protocols.embedding import embedding_task
from packhorse.serve.protocols.image_fields import read_images
from packhorse.text.tasks.labels import best_labels

CLASSIFIES = "a classifier of images"
ZERO_SHOT = "a model of images and texts"
_RAW = (b"image/", b"application/octet-stream")  # types of bodies that are an image
_TOP_K = 5
_MOST_LABELS = 1024


async def _read(exchange: Exchange) -> tuple[Fields, list[ImageInput], bool]:
    """(the fields, the images, whether one stands by itself)"""
    kind = exchange.headers.get(b"content-type", b"").lower()
    body = await exchange.body()
    # InferenceClient says no type of an image.
    if kind.startswith(_RAW) or not (kind or body.lstrip()[:1] == b"{"):
        return Fields(exchange.query()), [ImageInput("the body", body)], True
    fields = Fields(await exchange.json_of(body))
    most = exchange.service.settings.max_client_images
    return fields, *read_images(fields, "inputs", most)


async def _run(
    exchange: Exchange,
    model: ServedImages,
    images: list[ImageInput],
    task: AnyTask,
    *,
    single: bool,
) -> Outcome:
    found = await exchange.fetched(images)
    outcome = await exchange.run(model, task, found, "predict", single=single)
    exchange.service.metrics.saw(model.name, len(images))
    return outcome


async def image_classification(exchange: Exchange) -> Reply:
    """POST /image-classification: the best labels of each image. The body may be the image itself,
    if its type says so, or it has none and is no JSON."""
    fields, images, single = await _read(exchange)
    registry = exchange.service.registry
    model = registry.images(fields.optional_text("model"), "classify_images", CLASSIFIES)
    options = fields.table("parameters") or Fields({})
    top_k = options.integer("top_k", 1) or _TOP_K
    activation = options.get("function_to_apply")
    if activation not in (None, "softmax", "sigmoid", "none"):
        options.wrong("function_to_apply", '"softmax", "sigmoid" or "none"')
    fields.refuse_rest(OF_TEXTS)
    image_model = model.images

    def labels(logits: FloatArray) -> Any:
        return best_labels(image_model.labels, image_model.scores_of(logits, activation), top_k)

    task = ImageReading(model, "logits", labels)
    outcome = await _run(exchange, model, images, task, single=single)
    headers = compute_headers(exchange, outcome, 0, model.device)
    return json_reply(outcome.found[0] if single else outcome.found, headers=headers)


async def zero_shot_image_classification(exchange: Exchange) -> Reply:
    """POST /zero-shot-image-classification: the labels of a request, best first for each image."""
    fields = Fields(await exchange.json())
    service = exchange.service
    images, single = read_images(fields, "inputs", service.settings.max_client_images)
    model = service.registry.images(fields.optional_text("model"), "zero_shot", ZERO_SHOT)
    options = fields.table("parameters")
    if options is None:
        fields.wrong("parameters", "an object with candidate_labels")
    names = options.texts("candidate_labels", _MOST_LABELS)
    check_words("parameters.candidate_labels", names, _MOST_LABELS)
    template = options.text("hypothesis_template", DEFAULT_TEMPLATE)
    if "{}" not in template:
        options.wrong("hypothesis_template", "a text with {} where the label goes")
    check_words("parameters.hypothesis_template", [template] * len(names), _MOST_LABELS)
    top_k = options.integer("top_k", 1)
    fields.refuse_rest(OF_TEXTS)
    texts = label_texts(names, template)
    text_task = embedding_task(
        model.required_texts, Inputs(texts, False, False), cut=Cut(truncation=True)
    )
    task = ImageReading(model, "embedding")
    rows = (await _run(exchange, model, images, task, single=single)).found
    of_texts = await exchange.run(model.required_texts, text_task, texts, None)
    scores = label_scores(model.session.config, rows, of_texts.found)
    found = best_labels(names, scores, top_k)
    headers = compute_headers(exchange, of_texts, sum(map(len, texts)), model.device)
    return json_reply(found[0] if single else found, headers=headers)
