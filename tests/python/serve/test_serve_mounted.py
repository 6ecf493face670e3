"""The server's application as a part of another one, and a service of one's own."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi_client import run_asgi
from packhorse import TextModel
from serve_room import PACKAGES, settings_for

for package in PACKAGES:
    pytest.importorskip(package)
EXAMPLES = Path(__file__).parents[3] / "examples"
ASKED = ("POST", "/models/embed", {"inputs": "a cat"})


def mounted(kind: str, served: Any, *, lifespan: bool) -> Any:
    """An application of FastAPI or Starlette with the server's below /models, as in
    docs/serve_operation.md."""

    @asynccontextmanager
    async def run(_app: Any) -> AsyncIterator[None]:
        async with served.router.lifespan_context(served):
            yield

    chosen = run if lifespan else None
    if kind == "fastapi":
        app = pytest.importorskip("fastapi").FastAPI(lifespan=chosen)
        app.mount("/models", served)
        return app
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount("/models", served)], lifespan=chosen)


@pytest.mark.parametrize("kind", ["fastapi", "starlette"])
@pytest.mark.parametrize("origins", [(), ("*",)])
def test_the_application_is_a_part_of_another(
    minilm: Path, kind: str, origins: tuple[str, ...]
) -> None:
    from packhorse.serve import create_app

    served = create_app(settings_for(f"m={minilm}", cors_allow_origin=origins))
    page = ("GET", "/models/", None)
    script = ("GET", "/models/page/page.js", None)
    one = ("GET", "/models/models/m", None)
    answers = run_asgi(mounted(kind, served, lifespan=True), ASKED, page, script, one)
    assert [answer.status for answer in answers] == [200] * 4
    with TextModel.load(minilm, threads=1) as model:
        np.testing.assert_array_equal(np.float32(answers[0].json[0]), model.embed("a cat"))
    assert answers[1].body.startswith(b"<!doctype html>")
    assert answers[3].json["name"] == "m"
    assert served.state.service.registry.models() == []


def test_a_lifespan_that_does_not_run_is_named(minilm: Path) -> None:
    from packhorse.serve import create_app

    served = create_app(settings_for(f"m={minilm}"))
    (answer,) = run_asgi(mounted("starlette", served, lifespan=False), ASKED)
    assert answer.status == 503
    assert "lifespan" in answer.json["error"]


def test_a_service_of_ones_own(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    monkeypatch.setenv("MODEL", str(minilm))
    monkeypatch.syspath_prepend(EXAMPLES)
    before = set(sys.modules)
    import fastapi_service

    texts = ["a cat", "a dog", "the mat"]
    calls = [("POST", "/vectors", {"texts": [text]}) for text in texts]
    wrong = ("POST", "/vectors", {"texts": []})
    *answers, refused = run_asgi(fastapi_service.app, *calls, wrong)
    with TextModel.load(minilm) as model:
        expected = model.embed(texts, normalize=True)
    for answer, row in zip(answers, expected, strict=True):
        np.testing.assert_array_equal(np.float32(answer.json[0]), row)
    assert refused.status == 422
    assert not any(name.startswith("packhorse.serve") for name in set(sys.modules) - before)
