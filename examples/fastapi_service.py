"""A web service of one's own, with FastAPI, that embeds texts.

    pip install fastapi uvicorn
    MODEL=sentence-transformers/all-MiniLM-L6-v2 uvicorn --app-dir examples fastapi_service:app

The model is loaded when the service begins and freed when it ends. Requests that come at the same
time share batches: `embed_async` has a thread for each.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import packhorse
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field


class Texts(BaseModel):
    texts: list[str] = Field(min_length=1, max_length=256)


@asynccontextmanager
async def lifespan(service: FastAPI) -> AsyncIterator[None]:
    name = os.environ.get("MODEL", "sentence-transformers/all-MiniLM-L6-v2")
    with packhorse.TextModel.load(name) as model:
        service.state.model = model
        yield


app = FastAPI(title="Embeddings", lifespan=lifespan)


@app.post("/vectors")
async def vectors(request: Request, given: Texts) -> list[list[float]]:
    """A vector of length 1 for each text."""
    model: packhorse.TextModel = request.app.state.model
    try:
        found = await model.embed_async(given.texts, normalize=True)
    except ValueError as error:  # a text that the model does not take
        raise HTTPException(422, str(error)) from None
    return found.tolist()
