"""The simplest server of sentence-transformers that people write, for benchmarks/serve/load.py.

Usage: python peer_app.py MODEL DTYPE PORT
"""

import sys

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

folder, dtype, port = sys.argv[1:]
torch.set_num_threads(2)
model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})
app = FastAPI()


class Texts(BaseModel):
    inputs: str | list[str]


@app.post("/embed")
def embed(texts: Texts) -> list[list[float]]:
    inputs = [texts.inputs] if isinstance(texts.inputs, str) else texts.inputs
    return model.encode(inputs, show_progress_bar=False).tolist()


@app.get("/health")
def health() -> None:
    return None


uvicorn.run(app, port=int(port), log_level="warning")
