"""The application: all routes of a server, for any ASGI server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount

from packhorse.serve.http import field_names
from packhorse.serve.http.endpoint import cohere_style, openai_style, tei_style
from packhorse.serve.http.exchange import HTTP_CONNECTION, Receive, Scope, Send
from packhorse.serve.http.routes import Route, Routes
from packhorse.serve.http.service import Service
from packhorse.serve.protocols import (
    admin,
    cohere_embed,
    health,
    hub_tasks,
    image_tasks,
    openai_audio,
    openai_embeddings,
    openai_generation,
    page,
    rerankers,
    responses,
    tei,
    tei_text,
    text_to_text,
    tgi,
)
from packhorse.serve.settings import Settings

LINES = (
    Route("GET", "/", page.index, tei_style, public=True),
    Route("GET", "/page/", page.file, tei_style, public=True),
    Route("POST", "/", tei.root, tei_style, names=field_names.TEI),
    Route("POST", "/embed", tei.embed, tei_style, names=field_names.TEI),
    Route("POST", "/embed_all", tei.embed_all, tei_style, names=field_names.TEI),
    Route("POST", "/embed_sparse", tei.embed_sparse, tei_style, names=field_names.TEI),
    Route("POST", "/rerank", tei.rerank, tei_style, names=field_names.CUT),
    Route("POST", "/predict", tei.predict, tei_style, names=field_names.TEI),
    Route("POST", "/similarity", tei.similarity, tei_style, names=field_names.CUT),
    Route("POST", "/tokenize", tei_text.tokenize, tei_style, names=field_names.TEI),
    Route("POST", "/decode", tei_text.decode, tei_style),
    Route("GET", "/info", tei_text.info, tei_style),
    Route(
        "POST",
        "/token-classification",
        hub_tasks.token_classification,
        tei_style,
        names=field_names.TEI,
    ),
    Route(
        "POST",
        "/question-answering",
        hub_tasks.question_answering,
        tei_style,
        names=field_names.ANSWERS,
    ),
    Route("POST", "/fill-mask", hub_tasks.fill_mask, tei_style, names=field_names.TEI),
    Route("POST", "/generate", tgi.generate, tei_style),
    Route("POST", "/image-classification", image_tasks.image_classification, tei_style),
    Route(
        "POST",
        "/zero-shot-image-classification",
        image_tasks.zero_shot_image_classification,
        tei_style,
    ),
    Route("POST", "/translate", text_to_text.translate, tei_style, names=field_names.TO_TEXT),
    Route("POST", "/summarize", text_to_text.summarize, tei_style, names=field_names.TO_TEXT),
    Route(
        "POST", "/embeddings", openai_embeddings.embeddings, openai_style, names=field_names.OPENAI
    ),
    Route(
        "POST",
        "/v1/embeddings",
        openai_embeddings.embeddings,
        openai_style,
        names=field_names.OPENAI,
    ),
    Route("POST", "/v1/completions", openai_generation.completions, openai_style),
    Route("POST", "/v1/chat/completions", openai_generation.chat, openai_style),
    Route("POST", "/v1/responses", responses.responses, openai_style),
    Route("POST", "/v1/audio/transcriptions", openai_audio.transcriptions, openai_style),
    Route("POST", "/v1/audio/translations", openai_audio.translations, openai_style),
    Route("POST", "/v1/rerank", rerankers.rerank, openai_style, names=field_names.RERANK),
    Route("POST", "/v1/score", rerankers.scores, openai_style, names=field_names.SCORE),
    Route("POST", "/score", rerankers.scores, openai_style, names=field_names.SCORE),
    Route("POST", "/v2/embed", cohere_embed.embed, cohere_style, names=field_names.COHERE),
    Route("POST", "/v2/rerank", rerankers.cohere_rerank, cohere_style, names=field_names.RERANK),
    Route("GET", "/v1/models", openai_embeddings.models, openai_style),
    Route("GET", "/v1/models/", openai_embeddings.model, openai_style),
    Route("GET", "/models", admin.list_models, tei_style),
    Route("POST", "/models", admin.load_model, tei_style),
    Route("GET", "/models/", admin.show_model, tei_style),
    Route("POST", "/models/", admin.change_model, tei_style),
    Route("DELETE", "/models/", admin.unload_model, tei_style),
    Route("GET", "/health", health.health, tei_style, public=True),
    Route("GET", "/ping", health.health, tei_style, public=True),
    Route("GET", "/ready", health.ready, tei_style, public=True),
    Route("GET", "/metrics", health.metrics, tei_style, public=True),
    Route("GET", "/openapi.json", health.openapi, tei_style, public=True),
)


class Application(Starlette):
    """Starlette, which is asked only for what it adds: the lifespan, and CORS where that is on."""

    def __init__(self, service: Service) -> None:
        @asynccontextmanager
        async def lifespan(_app: Starlette) -> AsyncIterator[None]:
            await service.start()
            try:
                yield
            finally:
                await service.stop()

        origins = list(service.settings.cors_allow_origin)
        cors = Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
        self._routes = Routes(service, LINES)
        self._direct = not origins
        super().__init__(
            routes=[Mount("/", self._routes)],
            middleware=[cors] if origins else [],
            lifespan=lifespan,
        )
        self.state.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._direct and scope["type"] == "http":
            await self._routes(scope, receive, send)
        else:
            # Middleware changes the answer: nothing may be written to the connection past it.
            scope.get("extensions", {}).pop(HTTP_CONNECTION, None)
            await super().__call__(scope, receive, send)


def create_app(settings: Settings | None = None) -> Application:
    """The application with these settings; None: those of the environment (`Settings.load`).

    Its models are loaded when the server that runs it begins (the lifespan protocol of ASGI), and
    freed when it ends. `app.state.service` is its `Service`.
    """
    return Application(Service(settings if settings is not None else Settings.load()))
