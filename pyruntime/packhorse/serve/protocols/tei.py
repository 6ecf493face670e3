"""The protocol of text-embeddings-inference: what models do with texts."""

from __future__ import annotations

from packhorse.serve.checks import Fields
from packhorse.serve.embedding import EMBEDS, contiguous, embedding_task
from packhorse.serve.errors import ServeError
from packhorse.serve.exchange import Exchange, Reply, json_reply
from packhorse.serve.service import compute_headers


def truncation_of(exchange: Exchange, fields: Fields) -> bool:
    """Whether texts that are too long are cut."""
    side = fields.choice("truncation_direction", ("Left", "Right", "left", "right"), "Right")
    if side.lower() == "left":
        raise ServeError(
            "unsupported",
            "truncation_direction: texts are cut as the model's tokenizer says, not as asked",
            parameter="truncation_direction",
        )
    return fields.flag("truncate", exchange.service.settings.auto_truncate)


async def embed(exchange: Exchange) -> Reply:
    """POST /embed: a list of vectors."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "embed", EMBEDS)
    inputs = fields.inputs("inputs", service.settings.max_client_batch_size)
    task = embedding_task(
        model,
        inputs,
        truncation=truncation_of(exchange, fields),
        prompt_name=fields.optional_text("prompt_name"),
        truncate_dim=fields.integer("dimensions", 1),
        normalize=fields.flag("normalize", True),
    )
    outcome = await service.run(exchange, model, task, inputs.items, "embed", single=inputs.single)
    headers = compute_headers(exchange, outcome, inputs.characters, model.device)
    return json_reply(contiguous(outcome.found), headers=headers)
