"""Requests that are legal, or refused by name, and ask as much of a server as one request can: the
longest lists, texts and answers of each route. None may hold up another client, or be kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fake_engine import byte_level
from models import decoder_spec, write_model
from serve_room import make_models

DECODER = decoder_spec(vocab_size=300, hidden_size=32, num_heads=2, intermediate_size=64)
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


class Hostile(NamedTuple):
    """A request; `make` gives the fields of its body, or bytes that are none."""

    name: str
    path: str
    make: Callable[[], Any]

    def body(self) -> bytes:
        made = self.make()
        return made if isinstance(made, bytes) else json.dumps(made, ensure_ascii=False).encode()


def make_hostile_models(root: Path) -> dict[str, Path]:
    """Folders of a tiny model for each route, by name: those of `serve_room` and "answerer" and
    "lm", which generates."""
    from checkpoints import GOLDEN
    from tiny_tokenizer import make_tokenizer, with_tokenizer

    found = make_models(root)
    found["answerer"] = with_tokenizer(GOLDEN / "bert-answers", root / "answerer")
    make_tokenizer().save(str(found["answerer"] / "tokenizer.json"))
    found["lm"] = write_model(root / "lm", DECODER)
    byte_level().save(str(found["lm"] / "tokenizer.json"))
    (found["lm"] / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return found


def _hub(path: str, model: str, inputs: Any, **parameters: Any) -> tuple[str, Any]:
    return path, {"model": model, "inputs": inputs, "parameters": parameters, "truncate": True}


def hostile_requests(size: int = 7_900_000, items: int = 1024) -> Iterator[Hostile]:
    """Requests that cost much to read.

    size   bytes of the body, about
    items  texts of a request
    """
    words = "the cat sat on the mat, "
    long = words * (size // len(words))
    short = [words * (size // len(words) // items)] * items
    ids = [5] * (size // 40)
    message = {"role": "user", "content": "x"}

    def of(path: str, model: str, **fields: Any) -> Iterator[Hostile]:
        name = ", ".join(f"{key} {_shape(value)}" for key, value in fields.items())
        yield Hostile(f"{path} {name}"[:100], path, lambda: {"model": model, **fields})

    def raw(path: str, what: str, one: str, count: int) -> Iterator[Hostile]:
        body = '{"inputs": [' + ",".join([one] * count) + "]}"
        yield Hostile(f"{path} {what}", path, body.encode)

    for inputs in (long, short, [""] * items, ids, [ids[: len(ids) // items]] * items):
        yield from of("/embed", "bge-m3", inputs=inputs, truncate=True)
    yield from raw("/embed", "lists in lists", "[]", size // 3)
    yield from raw("/embed", "objects", "{}", size // 3)
    yield from raw("/embed", "empty texts", '""', size // 3)
    yield from raw("/embed", "numbers", "1.5", size // 4)
    yield from raw("/embed", "a text of commas", '"' + "[," * (size // 2) + '"', 1)
    yield from raw("/embed", "a text of quotes", '"' + '\\"' * (size // 2) + '"', 1)
    yield from raw("/embed", "a text of backslashes", '"' + "\\\\" * (size // 2) + '"', 1)
    yield from raw("/embed", "a text of wide letters", '"' + "\U0001f600" * (size // 4) + '"', 1)
    yield from of("/embed_all", "bge-m3", inputs=short, truncate=True)
    yield from of("/embed_sparse", "splade", inputs=short, truncate=True)
    yield from of("/predict", "classifier", inputs=[[one] for one in short], truncate=True)
    yield from of(
        "/rerank", "reranker", query=long[: size // 2], texts=["a"] * items, truncate=True
    )
    yield from of("/rerank", "reranker", query="a", texts=short, truncate=True, return_text=True)
    yield from of("/v1/rerank", "reranker", query="a", documents=short, truncation=True)
    yield from of("/v2/rerank", "reranker", query="a", documents=short)
    yield from of("/score", "reranker", text_1=short[: items // 2], text_2=short[: items // 2])
    yield from of("/similarity", "bge-m3", inputs={"source_sentence": "a", "sentences": short[:-1]})
    yield from of("/tokenize", "bge-m3", inputs=long)
    yield from of("/tokenize", "bge-m3", inputs=short)
    yield from of("/decode", "bge-m3", ids=ids)
    yield from of("/v1/embeddings", "bge-m3", input=short, encoding_format="base64")
    yield from of("/v2/embed", "bge-m3", texts=short, embedding_types=["float", "base64", "binary"])
    for text, stride in ((long, 10), (words * 500, 8), (long[: size // 60], 2)):
        path, body = _hub("/token-classification", "tagger", text, stride=stride)
        yield from of(path, **body)
    path, body = _hub("/token-classification", "tagger", "a", ignore_labels=["x"] * (size // 5))
    yield from of(path, **body)
    for context in (long, long[: size // 40]):
        yield from of(
            "/question-answering", "answerer", inputs={"question": "a", "context": context}
        )
    question = {"question": long[: size // 2], "context": "a"}
    yield from of("/question-answering", "answerer", inputs=question)
    path, body = _hub("/fill-mask", "filler", ["a [MASK] " * 10] * 2, top_k=1000)
    yield from of(path, **body)
    path, body = _hub("/fill-mask", "filler", "a [MASK]", targets=["unknown"] * (size // 12))
    yield from of(path, **body)
    path, body = _hub("/fill-mask", "filler", "a [MASK]", targets=[f"w{i}" for i in range(200)])
    yield from of(path, **body)

    few = {"prompt": "a", "max_tokens": 8}
    completions = "/v1/completions"
    yield from of(completions, "lm", prompt=long, max_tokens=4)
    yield from of(completions, "lm", prompt=["a"] * 256, max_tokens=2)
    yield from of(completions, "lm", prompt=["a"] * 1024, n=128, max_tokens=2)
    yield from of(completions, "lm", **few, n=128, logprobs=20)
    yield from of(completions, "lm", **few, n=128, stream=True)
    yield from of(completions, "lm", **few, stop=[f"{i:06d}" for i in range(size // 12)])
    yield from of(completions, "lm", **few, stop=["x" * i for i in range(1009, 1025)])
    yield from of(completions, "lm", **few, logit_bias={str(i): 0.5 for i in range(300)})
    yield from of(completions, "lm", **few, logit_bias={str(i): 1 for i in range(size // 16)})
    yield from of(completions, "lm", **few, choices=[f"choice {i}" for i in range(4096)])
    for regex in ("a{1000000}", "((a{100}){100}){100}", "(a|aa)+" * 1000, "x" * (size // 2)):
        yield from of(completions, "lm", **few, regex=regex)
    schema: dict[str, Any] = {"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}
    wide = {
        "properties": {f"p{i}": {"type": "string", "pattern": "a{1,99}b*"} for i in range(3000)}
    }
    for one in (schema, {"type": "object", **wide}, {"enum": [f"v{i}" for i in range(9000)]}):
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": one}}
        yield from of(completions, "lm", **few, response_format=form)
    chat = "/v1/chat/completions"
    yield from of(chat, "lm", messages=[message] * 10_000, max_tokens=2)
    yield from of(chat, "lm", messages=[{**message, "content": long}], max_tokens=2)
    parts = [{"type": "text", "text": "x"}] * 30_000
    yield from of(chat, "lm", messages=[{**message, "content": parts}], max_tokens=2)
    yield from of(chat, "lm", messages=[{**message, "content": parts * 9}], max_tokens=2)
    tool = {"type": "function", "function": {"name": "f", "parameters": wide}}
    yield from of(chat, "lm", messages=[message], tools=[tool] * 20, tool_choice="required")
    responses = "/v1/responses"
    yield from of(responses, "lm", input=[message] * 10_000, max_output_tokens=2)
    yield from of(responses, "lm", input=[{**message, "content": parts}], max_output_tokens=2)


def _shape(value: Any) -> str:
    """A value in a name."""
    if isinstance(value, str):
        return f'"{value}"' if len(value) < 20 else f"of {len(value):,} characters"
    if isinstance(value, list | dict) and len(value) > 8:
        return f"of {len(value):,}"
    return f"{value}"[:30]


def fresh_requests(number: int, count: int = 60) -> Iterator[Hostile]:
    """Small requests of each route whose options no request had before: what a server keeps of one
    of them it would keep of all. The lists are as long as they may be, or too long."""
    new = [f"w{number}x{i}" for i in range(count)]
    word = new[0]
    few = {"model": "lm", "prompt": f"a {word}", "max_tokens": 3}
    schema = {"type": "object", "properties": {one: {"type": "null"} for one in new[:20]}}
    form = {"type": "json_schema", "json_schema": {"name": word, "schema": schema}}
    chat = {"model": "lm", "max_tokens": 3, "messages": [{"role": word, "content": word}]}
    hub: list[tuple[str, Any]] = [
        _hub("/token-classification", "tagger", f"the {word}", ignore_labels=new[:16]),
        _hub("/token-classification", "tagger", f"the {word}", ignore_labels=new),
        _hub("/token-classification", "tagger", f"the {word}", aggregation_strategy=word),
        _hub("/token-classification", "tagger", f"the {word}", stride=number),
        _hub("/fill-mask", "filler", f"{word} [MASK]", targets=new),
        _hub("/fill-mask", "filler", f"{word} [MASK]", targets=word, top_k=1 + number % 1000),
    ]
    question = {"model": "answerer", "inputs": {"question": word, "context": f"the {word}"}}
    for path, body in (
        *hub,
        ("/question-answering", {**question, "parameters": {"max_answer_len": number + 1}}),
        ("/question-answering", {**question, "parameters": {"doc_stride": number % 100}}),
        ("/embed", {"model": "bge-m3", "inputs": new}),
        ("/embed", {"model": "bge-m3", "inputs": word, "prompt_name": word}),
        ("/embed", {"model": word, "inputs": word}),
        ("/embed", {"model": "bge-m3", "inputs": word, "dimensions": number + 1}),
        ("/embed_all", {"model": "bge-m3", "inputs": new, "prompt_name": word}),
        ("/embed_sparse", {"model": "splade", "inputs": new}),
        ("/rerank", {"model": "reranker", "query": word, "texts": new}),
        ("/predict", {"model": "classifier", "inputs": [[one] for one in new]}),
        ("/tokenize", {"model": "bge-m3", "inputs": new}),
        ("/decode", {"model": "bge-m3", "ids": [number % 100] * count}),
        (f"/{word}", {}),
        ("/v1/embeddings", {"model": "bge-m3", "input": new, "encoding_format": "base64"}),
        ("/v2/embed", {"model": "bge-m3", "texts": new, "input_type": word}),
        ("/v2/rerank", {"model": "reranker", "query": word, "documents": new}),
        ("/score", {"model": "reranker", "text_1": word, "text_2": new}),
        ("/v1/completions", few),
        ("/v1/completions", {**few, "stop": new[:16], "user": word}),
        ("/v1/completions", {**few, "choices": new}),
        ("/v1/completions", {**few, "regex": f"({word}|[a-z]{{{number % 50}}})+"}),
        ("/v1/completions", {**few, "regex": f"({word}"}),
        ("/v1/completions", {**few, "response_format": form}),
        ("/v1/completions", {**few, "logit_bias": {str(i): number for i in range(count)}}),
        ("/v1/completions", {**few, "seed": number, "temperature": 1 + number / 1e6, "n": 8}),
        ("/v1/completions", {**few, "stream": True, "logprobs": 5}),
        ("/v1/chat/completions", chat),
        ("/v1/responses", {"model": "lm", "input": word, "instructions": word, "metadata": chat}),
        ("/v1/chat/completions", {**chat, "chat_template": "{{ messages }}" + word}),
        ("/v1/chat/completions", {**chat, "chat_template_kwargs": {word: new}}),
    ):
        yield Hostile(path, path, lambda body=body: body)  # type: ignore[misc]
