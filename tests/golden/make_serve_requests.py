"""Records what the clients that people use send to a server: tests/golden/serve_requests/*.json.

    python tests/golden/make_serve_requests.py [openai] [cohere] [huggingface_hub]

Needs the extra `serve`, and the packages openai, cohere and huggingface_hub in the same
environment. A server with tiny models runs behind a proxy that writes requests down; each client
must understand the answers, or this fails. The tests send the requests again.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import math
import struct
import sys
import tempfile
import threading
import wave
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "python" / "support"))

from serve_room import make_models, serve_chance, serving, settings_for  # noqa: E402
from tool_models import agent  # noqa: E402

KEPT = ("authorization", "content-type", "accept", "user-agent")
KEY = "secret"
TEXTS = ["the cat sat", "a dog"]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Ur", "Uz"]}},
    "required": ["city"],
    "additionalProperties": False,
}


class Recorder(ThreadingHTTPServer):
    """Hands requests on to another port, and keeps them."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.port = port
        self.requests: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Recorder

    def _hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        kept = {name: headers[name] for name in KEPT if name in headers}
        record: dict[str, Any] = {"method": self.command, "path": self.path, "headers": kept}
        if kept.get("content-type", "").startswith("multipart/"):
            record["form"] = base64.b64encode(body).decode()
        elif body:
            record["body"] = json.loads(body)
        self.server.requests.append(record)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        passed = {name: value for name, value in headers.items() if name != "host"}
        connection.request(self.command, self.path, body or None, passed)
        answer = connection.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        self.send_header("content-type", answer.headers["content-type"])
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _hand_on  # noqa: N815

    def log_message(self, *_arguments: Any) -> None:
        pass


def with_openai(address: str) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{address}/v1", api_key=KEY)
    found = client.embeddings.create(model="colbert", input=TEXTS)
    assert len(found.data) == 2
    assert len(found.data[0].embedding) == 32
    client.embeddings.create(model="colbert", input="a", encoding_format="float", dimensions=8)
    assert "lm" in [model.id for model in client.models.list()]
    assert client.models.retrieve("lm").id == "lm"
    text = client.completions.create(model="lm", prompt="tr", max_tokens=5, seed=1, logprobs=2)
    assert text.usage is not None
    assert text.usage.completion_tokens == 5
    echoed = client.completions.create(
        model="lm",
        prompt="tr",
        max_tokens=2,
        echo=True,
        logprobs=1,
        best_of=1,
        suffix=None,
        user="x",
    )
    assert echoed.choices[0].text.startswith("tr")
    assert echoed.choices[0].logprobs is not None
    assert "".join(echoed.choices[0].logprobs.tokens or ()) == echoed.choices[0].text
    messages: Any = [{"role": "system", "content": "x"}, {"role": "user", "content": "tr"}]
    chat = client.chat.completions.create(
        model="lm", messages=messages, max_completion_tokens=5, n=2, stop=["zz"], top_p=0.9
    )
    assert len(chat.choices) == 2
    client.chat.completions.create(
        model="lm",
        messages=messages,
        max_completion_tokens=3,
        modalities=["text"],
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        safety_identifier="x",
        prompt_cache_key="x",
        logit_bias={},
        top_p=0,
        extra_body={
            "guided_regex": "[a-z]+",
            "add_generation_prompt": True,
            "skip_special_tokens": True,
            "min_tokens": 0,
            "priority": 0,
        },
    )
    stream = client.chat.completions.create(
        model="lm",
        messages=messages,
        max_completion_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    *_, last = stream
    assert last.usage is not None
    assert last.usage.completion_tokens == 5
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    client.chat.completions.create(
        model="lm",
        messages=messages,
        max_completion_tokens=50,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema, "strict": True},
        },
    )

    with_tools(client)
    with_responses(client)
    with_audio(client)


def with_audio(client: Any) -> None:
    file = ("talk.wav", talk())
    asked = {"model": "whisper", "file": file}
    found = client.audio.transcriptions.create(**asked)
    assert isinstance(found.text, str)
    for form in ("text", "srt", "vtt"):
        assert isinstance(client.audio.transcriptions.create(response_format=form, **asked), str)
    verbose = client.audio.transcriptions.create(
        response_format="verbose_json",
        timestamp_granularities=["segment"],
        language="de",
        prompt="ABBA",
        temperature=0.8,
        chunking_strategy="auto",
        extra_body={"beam_size": 2, "hotwords": "BAB", "mode": "chunked"},
        **asked,
    )
    assert (verbose.language, verbose.duration) == ("de", 0.05)
    for segment in verbose.segments:
        assert segment.end >= segment.start
        assert segment.tokens
    events = list(client.audio.transcriptions.create(stream=True, **asked))
    assert events[-1].type == "transcript.text.done"
    assert "".join(e.delta for e in events[:-1]) == events[-1].text
    assert isinstance(client.audio.translations.create(**asked).text, str)
    translated = client.audio.translations.create(
        response_format="verbose_json", temperature=0.5, prompt="ABBA", **asked
    )
    assert translated.duration == 0.05


def talk() -> bytes:
    """A WAV file of 50 ms."""
    samples = [int(8000 * math.sin(0.2 * i)) for i in range(800)]
    file = io.BytesIO()
    with wave.open(file, "wb") as target:
        target.setnchannels(1)
        target.setsampwidth(2)
        target.setframerate(16000)
        target.writeframes(struct.pack("<800h", *samples))
    return file.getvalue()


def with_tools(client: Any) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
    messages: Any = [{"role": "user", "content": "How is the weather in Ur?"}]
    asked = {"model": "agent", "tools": [tool], "parallel_tool_calls": True}
    choice = client.chat.completions.create(messages=messages, **asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Ur"}
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    client.chat.completions.create(messages=messages, tool_choice="none", **asked)
    named = {"type": "function", "function": {"name": "weather"}}
    client.chat.completions.create(messages=messages, tool_choice=named, **asked)
    with client.chat.completions.stream(messages=messages, tool_choice="required", **asked) as all_:
        for _ in all_:
            pass
        made = all_.get_final_completion().choices[0].message.tool_calls
    assert made[0].function.name == "weather"
    assert json.loads(made[0].function.arguments)["city"] in ("Ur", "Uz")


def with_responses(client: Any) -> None:
    plain = client.responses.create(
        model="lm",
        input="tr",
        instructions="x",
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        store=False,
        metadata={"a": "b"},
        text={"format": {"type": "text"}},
    )
    assert (plain.status, plain.usage.output_tokens) == ("incomplete", 5)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    made = client.responses.create(model="lm", input="tr", text={"format": form})
    assert "a" in json.loads(made.output_text)
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}
    asked = {"model": "agent", "tools": [tool]}
    given: Any = [{"role": "user", "content": "How is the weather in Ur?"}]
    called = client.responses.create(input=given, tool_choice="auto", **asked)
    given += called.output
    result = {"type": "function_call_output", "call_id": called.output[0].call_id, "output": "rain"}
    client.responses.create(input=[*given, result], tool_choice="none", **asked)
    kinds = [event.type for event in client.responses.create(input=given, stream=True, **asked)]
    assert "response.function_call_arguments.done" in kinds
    with client.responses.stream(model="lm", input="tr", max_output_tokens=5) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        stream.until_done()
        assert text


def with_cohere(address: str) -> None:
    import cohere

    client = cohere.ClientV2(api_key=KEY, base_url=address)
    found = client.embed(
        model="colbert",
        texts=TEXTS,
        input_type="search_document",
        embedding_types=["float", "ubinary"],
        max_tokens=4,
        truncate="END",
        priority=1,
    )
    assert found.embeddings.float_ is not None
    assert len(found.embeddings.float_) == 2
    ranked = client.rerank(model="reranker", query="a cat", documents=TEXTS, top_n=1)
    client.rerank(model="reranker", query="a cat", documents=TEXTS, max_tokens_per_doc=4096)
    assert len(ranked.results) == 1


def with_huggingface_hub(address: str) -> None:
    from huggingface_hub import InferenceClient

    client = InferenceClient(f"{address}/embed", token=KEY)
    assert client.feature_extraction("the cat", normalize=True, truncate=True).shape == (1, 32)
    similar = InferenceClient(f"{address}/similarity", token=KEY)
    assert len(similar.sentence_similarity("a cat", TEXTS)) == 2
    labels = InferenceClient(f"{address}/predict", token=KEY)
    best: Any = labels.text_classification("the cat")  # the first of the list that it expects
    assert best["label"] in ("negative", "neutral", "positive")
    logits: Any = labels.text_classification("the cat", top_k=2, function_to_apply="none")
    assert len(logits) == 2
    filler = InferenceClient(f"{address}/fill-mask", token=KEY)
    words: Any = filler.fill_mask("the [MASK] sat", targets=["cat", "dog"], top_k=2)
    assert [word.token_str for word in words] in (["cat", "dog"], ["dog", "cat"])
    assert len(filler.fill_mask("the [MASK] sat")) == 5
    chat = InferenceClient(base_url=f"{address}/v1", token=KEY)
    messages: Any = [{"role": "user", "content": "tr"}]
    answer = chat.chat_completion(messages, model="lm", max_tokens=4)
    assert answer.usage.completion_tokens == 4
    *_, last = chat.chat_completion(messages, model="lm", max_tokens=4, stream=True)
    assert last.choices[0].finish_reason == "length"


CLIENTS: dict[str, Callable[[str], None]] = {
    "openai": with_openai,
    "cohere": with_cohere,
    "huggingface_hub": with_huggingface_hub,
}


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        serve_chance(monkeypatch, agent=agent)
        folders = make_models(Path(folder))
        chosen = ("colbert", "classifier", "reranker", "filler")
        named = [f"{name}={folders[name]}" for name in chosen]
        named += ["lm=chance", "agent=agent", f"whisper={HERE / 'speech' / 'whisper'}"]
        with serving(settings_for(*named, api_key=(KEY,))) as (client, _):
            for name, use in CLIENTS.items():
                if arguments and name not in arguments:
                    continue
                recorder = Recorder(client.port)
                threading.Thread(target=recorder.serve_forever, daemon=True).start()
                use(f"http://127.0.0.1:{recorder.server_port}")
                recorder.shutdown()
                content = {"package": name, "version": version(name), "requests": recorder.requests}
                path = HERE / "serve_requests" / f"{name}.json"
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
                print(f"{path}: {len(recorder.requests)} requests")


if __name__ == "__main__":
    main(sys.argv[1:])
