"""`packhorse serve`: transcriptions of audio by OpenAI's forms, beside what `AudioModel` gives."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audio_files import broken_files
from checkpoints import GOLDEN
from packhorse.audio import AudioModel, Progress
from packhorse.audio.subtitles import render
from packhorse.serve.errors import ServeError
from packhorse.serve.http.multipart import read_form
from serve_room import PACKAGES, SECONDS, Answer, Client, serving, settings_for
from tiny_tokenizer import with_tokenizer

for package in (*PACKAGES, "soundfile"):
    pytest.importorskip(package)

MODEL = GOLDEN / "speech" / "whisper"
PATH = "/v1/audio/transcriptions"


def audio(seconds: float = 1.3) -> bytes:
    import soundfile

    time = np.arange(int(16000 * seconds)) / 16000
    rng = np.random.default_rng(4)
    heard = np.sin(2 * np.pi * 500 * time) * (time % 0.5 < 0.2) + rng.normal(0, 0.01, time.size)
    file = io.BytesIO()
    soundfile.write(file, heard * 0.5, 16000, format="WAV", subtype="FLOAT")
    return file.getvalue()


def form(fields: dict[str, Any], file: bytes | None = None) -> tuple[bytes, dict[str, str]]:
    """(body, headers)"""
    parts = [
        f'--X-X\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    if file is not None:
        head = b'--X-X\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
        parts.append(head + b"Content-Type: audio/wav\r\n\r\n" + file + b"\r\n")
    return b"".join(parts) + b"--X-X--\r\n", {"content-type": "multipart/form-data; boundary=X-X"}


def ask(client: Client, path: str = PATH, file: bytes | None = None, **fields: Any) -> Answer:
    body, headers = form(fields, audio() if file is None else file)
    return client.post(path, body, headers=headers)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    labels = with_tokenizer(GOLDEN / "bert-sequence", tmp_path_factory.mktemp("m") / "labels")
    settings = settings_for(f"labels={labels}", f"whisper={MODEL}", kv_tokens=8192)
    with serving(settings) as (found, _):
        yield found


@pytest.fixture(scope="module")
def model() -> Iterator[AudioModel]:
    with AudioModel.load(MODEL, kv_tokens=8192) as found:
        yield found


def test_forms(client: Client, model: AudioModel) -> None:
    options = {"beam_size": 2, "temperature": 1.0, "seed": 7}
    found = model.transcribe(audio(), **options)
    assert found.segments
    assert ask(client, **options).json == {"text": found.text}
    for shape, kind in (("srt", "text/plain"), ("vtt", "text/vtt")):
        answer = ask(client, response_format=shape, **options)
        assert answer.body.decode() == render(found, shape)
        assert answer.headers["content-type"].startswith(kind)
    answer = ask(client, response_format="text", model="whisper", **options)
    assert answer.body.decode() == f"{found.text}\n"
    verbose = ask(client, response_format="verbose_json", **options).json
    timed = ask(client, file=audio(1.0125), response_format="verbose_json", beam_size=1)
    assert timed.json["duration"] == 1.0125
    assert (verbose["text"], verbose["language"]) == (found.text, found.language)
    assert verbose["segments"] == json.loads(render(found, "json"))["segments"]
    events = ask(client, stream="true", **options).events
    assert "".join(one["delta"] for one in events[:-1]).strip() == found.text
    assert events[-1]["type"] == "transcript.text.done"


def test_languages_and_prompts(client: Client, model: AudioModel) -> None:
    options = {"beam_size": 1, "temperature": 1.0, "seed": 3}
    asked = {"language": "de", "prompt": "ABC", "hotwords": "XY"}
    expected = model.transcribe(
        audio(), language="de", initial_prompt="ABC", hotwords="XY", **options
    )
    assert ask(client, **asked, **options).json["text"] == expected.text
    windows = model.transcribe(audio(2.5), mode="chunked", **options)
    assert ask(client, file=audio(2.5), mode="chunked", **options).json["text"] == windows.text
    translated = ask(client, "/v1/audio/translations", **options).json["text"]
    assert translated == model.transcribe(audio(), task="translate", **options).text
    translated = ask(client, "/v1/audio/translations", language="fr", **options).json["text"]
    expected = model.transcribe(audio(), task="translate", language="fr", **options)
    assert translated == expected.text
    refused = ask(client, "/v1/audio/translations", language="xx")
    assert refused.status == 400


def test_words(client: Client, model: AudioModel) -> None:
    options = {"beam_size": 1, "temperature": 1.0, "seed": 7}
    found = model.transcribe(audio(), word_timestamps=True, **options)
    words = [
        {"word": word.word.strip(), "start": word.start, "end": word.end}
        for segment in found.segments
        for word in segment.words or ()
    ]
    assert words
    body, headers = form({"response_format": "verbose_json", **options}, audio())
    for granularities in (["word"], ["word", "segment"]):
        parts = b"".join(
            b'--X-X\r\nContent-Disposition: form-data; name="timestamp_granularities[]"\r\n\r\n'
            + one.encode() + b"\r\n"
            for one in granularities
        )  # fmt: skip
        answer = client.post(PATH, parts + body, headers=headers).json
        assert answer["words"] == words
        assert ("segments" in answer) == ("segment" in granularities)
        for segment in answer.get("segments", []):
            assert "words" not in segment


@pytest.mark.parametrize(
    ("fields", "file", "message"),
    [
        ({"language": "xx"}, None, "language is 'xx', expected one of en, de, fr"),
        ({"response_format": "pdf"}, None, "response_format is 'pdf', expected one of json"),
        ({"temperature": "hot"}, None, "temperature is 'hot', expected a number from 0 to 1"),
        ({"temperature": "nan"}, None, "temperature is 'nan'"),
        ({"beam_size": "1.5"}, None, "beam_size is 1.5, expected a whole number"),
        ({"stream": "maybe"}, None, "stream is 'maybe', expected true or false"),
        ({"mode": "fast"}, None, "mode is 'fast', expected 'sequential' or 'chunked'"),
        ({"vad_filter": "yes"}, None, "vad_filter is 'yes', expected true or false"),
        ({"timestamp_granularities[]": "word"}, None, "expected verbose_json"),
        ({"timestamp_granularities": "letter"}, None, "has 'letter', expected segment or word"),
        ({"colour": "red"}, None, "'colour' is not supported"),
        ({"stream": "true", "response_format": "srt"}, None, "response_format is srt with stream"),
        ({"model": "labels"}, None, "model 'labels' is not a model of speech"),
        ({"model": "none"}, None, "there is no model 'none'"),
        ({}, b"not audio", "no audio"),
    ],
)
def test_refused(client: Client, fields: dict[str, str], file: bytes | None, message: str) -> None:
    answer = ask(client, file=file, **fields)
    assert answer.status in (400, 404), answer.body
    assert message in answer.json["error"]["message"]


def test_broken_files(client: Client) -> None:
    """Each is refused by what is wrong with it, and the next request is answered."""
    for name, (data, message) in broken_files().items():
        answer = ask(client, file=data)
        assert answer.status == 400, name
        assert re.search(message, answer.json["error"]["message"]), answer.json
    assert ask(client, beam_size=1).status == 200


def test_lists_of_models(client: Client) -> None:
    """Pages about all models have models of speech, too."""
    names = {one["id"] for one in client.get("/v1/models").json["data"]}
    assert names == {"labels", "whisper"}
    assert client.get("/models/whisper").json["methods"] == ["transcribe"]
    for path in ("/models", "/v1/models/whisper", "/info?model=whisper", "/metrics", "/health"):
        assert client.get(path).status == 200, path


def _as_file(body: bytes, name: bytes) -> bytes:
    """The form with one more file."""
    head = b'--X-X\r\nContent-Disposition: form-data; name="' + name + b'"; filename="blob"'
    return head + b"\r\n\r\nde\r\n" + body


@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_client_that_leaves(client: Client, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    """Nothing goes on for it, whether it waits for all of the text or reads it as it comes."""
    began, ended = threading.Event(), threading.Event()

    def hear(_model: AudioModel, _audio: bytes, **_options: Any) -> Iterator[Progress]:
        try:
            for number in range(100_000):
                began.set()
                time.sleep(0.002)
                yield Progress(number)
        finally:
            ended.set()

    monkeypatch.setattr(AudioModel, "stream", hear)
    body, headers = form({"stream": stream}, audio())
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        kind = f"content-type: {headers['content-type']}\r\ncontent-length: {len(body)}"
        connection.sendall(
            f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\n{kind}\r\n\r\n".encode() + body
        )
        assert began.wait(SECONDS)
    assert ended.wait(SECONDS)


def test_broken_forms(client: Client) -> None:
    body, headers = form({}, audio())
    for broken, kind, message in (
        (body[:-9], headers["content-type"], "does not end with its boundary"),
        (body, "application/json", "expected multipart/form-data with a boundary"),
        (form({})[0], headers["content-type"], "there is no file"),
        (form({"file": "a"})[0], headers["content-type"], "file has no filename, expected"),
        (_as_file(body, b"language"), headers["content-type"], "language has a filename"),
        (_as_file(body, b"colour"), headers["content-type"], "'colour' is not supported"),
        (b"", headers["content-type"], "does not end with its boundary"),
        (b"--X-X\r\n\r\nno name\r\n--X-X--", headers["content-type"], "has no"),
    ):
        answer = client.post(PATH, broken, headers={"content-type": kind})
        assert answer.status == 400
        assert message in answer.json["error"]["message"]
    answer = client.post("/v1/completions", {"model": "whisper", "prompt": "a"})
    assert answer.status == 400
    assert "it can: transcribe" in answer.json["error"]["message"]


def test_parts() -> None:
    body, headers = form({"a": "1", "b": "--X-Y"}, b"\r\n--X\r\n\x00")
    found = read_form(body, headers["content-type"])
    assert (found.texts, found.files) == (
        {"a": ["1"], "b": ["--X-Y"]},
        {"file": b"\r\n--X\r\n\x00"},
    )
    quoted = read_form(body, 'multipart/form-data; boundary="X-X"')
    assert quoted == found
    many = b"".join(form({"a": "1"})[0][:-9] for _ in range(101)) + b"--X-X--"
    with pytest.raises(ServeError, match="more than 100 parts"):
        read_form(many, headers["content-type"])


def test_size_of_a_file() -> None:
    """A file has a limit of its own, which the one of JSON does not touch."""
    file = audio(0.4)  # 25,658 bytes
    assert 5000 < len(file) < 30_000
    limits = {"payload_limit": 5000, "kv_tokens": 4096}
    with serving(settings_for(f"whisper={MODEL}", max_audio_bytes=len(file), **limits)) as (one, _):
        assert ask(one, file=file, beam_size=1).status == 200
        answer = ask(one, file=file + b"x")
        assert answer.status == 413
        assert f"the file has {len(file) + 1} bytes" in answer.json["error"]["message"]
        answer = ask(one, file=file + bytes(70_000))
        assert answer.status == 413
        assert f"at most {len(file) + 65_536} are taken" in answer.json["error"]["message"]
        body, headers = form({"prompt": "a" * 6000}, file)
        assert one.post(PATH, body, headers=headers).status == 200
        answer = one.post("/v1/completions", {"model": "whisper", "prompt": "a" * 6000})
        assert answer.status == 413
    with serving(settings_for(f"whisper={MODEL}", max_body_bytes=9000, **limits)) as (one, _):
        answer = ask(one, file=file)
        assert answer.status == 413
        assert "at most 9000 are taken" in answer.json["error"]["message"]


def test_missing_network_of_speech(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.audio.silero.find_silero", lambda path: Path("none.onnx"))
    answer = ask(client, vad_filter="true")
    assert answer.status == 400
    assert "there is no file none.onnx" in answer.json["error"]["message"]
