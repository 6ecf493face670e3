"""Makes text.json and text.npz: what sentence-transformers and transformers make of texts.

    pip install torch transformers sentence-transformers
    python tests/golden/make_text_golden.py FOLDER      (of all-MiniLM-L6-v2)

text.json   scores of CrossEncoder.predict and of generative rerankers, results of the pipelines
            text-classification and token-classification, each text or pair by itself, of tiny
            models with a tiny tokenizer
text.npz    embeddings of SentenceTransformer.encode, and quantize_embeddings of some of them
Made with the versions that text.json names.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.util.quantization import quantize_embeddings

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python" / "support"))
import text_cases as cases  # noqa: E402
from tiny_tokenizer import with_tokenizer  # noqa: E402


def labels_of(folder: Path) -> dict[str, Any]:
    pipe = transformers.pipeline("text-classification", model=str(folder), truncation=True)
    pairs = [{"text": one, "text_pair": two} for one, two in cases.PAIRS]
    return {
        "texts": [pipe(text, top_k=None) for text in cases.TEXTS],
        "pairs": [pipe(pair, top_k=None) for pair in pairs],
        "best": [pipe(text)[0] for text in cases.TEXTS],
    }


def entities_of(folder: Path) -> dict[str, Any]:
    def plain(entity: dict[str, Any]) -> dict[str, Any]:
        return {name: getattr(value, "item", lambda v=value: v)() for name, value in entity.items()}

    found = {}
    for strategy in ("none", "simple"):
        pipe = transformers.pipeline(
            "token-classification", model=str(folder), aggregation_strategy=strategy
        )
        found[strategy] = [[plain(entity) for entity in pipe(text)] for text in cases.TEXTS]
    return found


def embeddings_of(minilm: str) -> dict[str, Any]:
    model = SentenceTransformer(minilm, prompts=cases.PROMPTS, device="cpu")
    texts = list(cases.MINILM_TEXTS)
    plain = model.encode(texts, batch_size=1)
    some = np.random.default_rng(0).permutation(plain.ravel())[:420].reshape(7, 60)
    some[:, 3] = 0.5
    ranges = np.stack([some.min(0) + 0.03, some.max(0) - 0.01])
    ranges.sort(axis=0)
    return {
        "plain": plain,
        "query": model.encode(texts, prompt_name="query", batch_size=1),
        "short": model.encode(texts, truncate_dim=50, normalize_embeddings=True, batch_size=1),
        "some": some,
        "ranges": ranges,
        **{
            kind: quantize_embeddings(some, kind) for kind in ("int8", "uint8", "binary", "ubinary")
        },
        **{f"{kind}_ranges": quantize_embeddings(some, kind, ranges) for kind in ("int8", "uint8")},
    }


@torch.no_grad()
def answers_of(folder: Path, instruction: str | None) -> list[float]:
    """P("yes") of each pair, as the model card of Qwen3-Reranker computes it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = cases.TEMPLATE
    no, yes = (tokenizer.convert_tokens_to_ids(texts[name]) for name in ("no", "yes"))
    before, after = (
        tokenizer.encode(texts[name], add_special_tokens=False) for name in ("prefix", "suffix")
    )
    found = []
    for query, document in cases.PAIRS:
        asked = texts["instruction"] if instruction is None else instruction
        body = tokenizer(
            f"of: {asked} who: {query} what: {document}",
            truncation="longest_first",
            max_length=tokenizer.model_max_length - len(before) - len(after),
        )["input_ids"]
        logits = model(torch.tensor([before + body + after])).logits[0, -1]
        found.append(float(logits[[no, yes]].log_softmax(0)[1].exp()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("minilm")
    minilm = parser.parse_args().minilm
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "versions": {
            module.__name__: module.__version__
            for module in (torch, transformers, sentence_transformers)
        }
    }
    with tempfile.TemporaryDirectory() as scratch:
        for kind, models in (
            ("scores", cases.RERANKERS),
            ("labels", cases.CLASSIFIERS),
            ("entities", cases.TOKEN_CLASSIFIERS),
        ):
            found[kind] = {}
            for name, (model, pair, config) in models.items():
                folder = with_tokenizer(HERE / model, Path(scratch) / kind / name, pair, config)
                if kind == "scores":
                    encoder = CrossEncoder(str(folder), device="cpu")
                    result: Any = [float(encoder.predict([pair])[0]) for pair in cases.PAIRS]
                else:
                    result = (labels_of if kind == "labels" else entities_of)(folder)
                found[kind][name] = result
        found["answers"] = {}
        for name, (model, config, instruction) in cases.ANSWERS.items():
            folder = with_tokenizer(HERE / model, Path(scratch) / name, "bert", config)
            found["answers"][name] = answers_of(folder, instruction)
    (HERE / "text.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")
    np.savez_compressed(HERE / "text.npz", **embeddings_of(minilm))


if __name__ == "__main__":
    main()
