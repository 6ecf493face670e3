"""Segments cut out of windows, and written as subtitles."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from audio_files import broken_files, written
from checkpoints import GOLDEN
from command_line import entry_point, failed
from packhorse.audio import Segment, Transcription, Word
from packhorse.audio.subtitles import render, timestamp
from packhorse.audio.windows import clips_of, compression_ratio, split_window


def segment(number: int, start: float, end: float, text: str, **more: object) -> Segment:
    return Segment(number, start, end, text, (1, 2), -0.5, 0.1, 1.0, 0.0, 0, **more)  # type: ignore[arg-type]


FOUND = Transcription(
    " A --> B\n",
    (segment(0, 0.0, 1.5, " A --> B"), segment(1, 3599.9996, 3661.25, " Gr\u00fc\u00df\tGott")),
    "de",
    0.9,
    3700.0,
)


def test_forms() -> None:
    assert render(FOUND, "txt") == "A --> B\nGr\u00fc\u00df\tGott\n"
    assert render(FOUND, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\nA -> B\n\n"
        "2\n01:00:00,000 --> 01:01:01,250\nGr\u00fc\u00df\tGott\n\n"
    )
    assert render(FOUND, "vtt") == (
        "WEBVTT\n\n00:00.000 --> 00:01.500\nA -> B\n\n"
        "01:00:00.000 --> 01:01:01.250\nGr\u00fc\u00df\tGott\n\n"
    )
    assert render(FOUND, "tsv") == (
        "start\tend\ttext\n0\t1500\tA --> B\n3600000\t3661250\tGr\u00fc\u00df Gott\n"
    )
    fields = json.loads(render(FOUND, "json"))
    assert fields["language"] == "de"
    assert fields["segments"][1]["start"] == 3599.9996
    assert "words" not in fields["segments"][0]
    with pytest.raises(ValueError, match="format is 'pdf', expected one of txt, srt, vtt"):
        render(FOUND, "pdf")


def test_empty() -> None:
    nothing = Transcription("", (), "en", 1.0, 0.0)
    assert [render(nothing, form) for form in ("txt", "srt", "vtt", "tsv")] == [
        "", "", "WEBVTT\n\n", "start\tend\ttext\n",
    ]  # fmt: skip


def test_words_and_times() -> None:
    word = Word(" a", 0.0, 0.25, 0.5)
    assert segment(0, 0, 1, "a", words=(word,)).as_dict()["words"] == [
        {"word": " a", "start": 0.0, "end": 0.25, "probability": 0.5}
    ]
    assert timestamp(-1.0) == "00:00.000"
    assert timestamp(59.9996) == "01:00.000"
    assert timestamp(360000.0) == "100:00:00.000"


T = 100  # the first token of time


@pytest.mark.parametrize(
    ("tokens", "pieces", "advance"),
    [
        ([], [(10.0, 40.0)], 3000),
        ([1, 2], [(10.0, 40.0)], 3000),
        ([T, 1], [(10.0, 40.0)], 3000),
        ([T, 1, T + 50], [(10.0, 11.0)], 3000),
        ([T, 1, T + 50, T + 50, 2], [(10.0, 11.0)], 100),
        ([T, 1, T + 50, T + 60, 2, T + 70], [(10.0, 11.0), (11.2, 11.4)], 3000),
        ([T, 1, T + 50, T + 60, 2, T + 70, T + 70], [(10.0, 11.0), (11.2, 11.4)], 140),
        ([T, T], [(10.0, 10.0)], 0),
    ],
)
def test_windows(tokens: list[int], pieces: list[tuple[float, float]], advance: int) -> None:
    split = split_window(tokens, T, 10.0, 3000)
    assert [(round(one.start, 6), round(one.end, 6)) for one in split.pieces] == pieces
    assert split.advance == advance


def test_clips() -> None:
    assert clips_of((), 500) == [(0, 500)]
    assert clips_of((1.0,), 500) == [(100, 500)]
    assert clips_of((0.5, 2.0, 3.0, 99.0), 500) == [(50, 200), (300, 500)]


def test_compression_ratio() -> None:
    assert compression_ratio("") == 0.0
    assert compression_ratio("ab" * 200) > 10
    assert compression_ratio("all different") < 1


def test_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files side by side become files of subtitles; what is wrong is said before a model loads."""
    run = entry_point(monkeypatch, capsys)
    model, out = GOLDEN / "speech" / "whisper", tmp_path / "out"
    files = [tmp_path / "a.wav", tmp_path / "b.wav"]
    more = ["--beam-size", 1, "--kv-tokens", 4096]
    assert failed(run("transcribe", model, files[0], "-f", "pdf"), "--format is 'pdf'")
    assert failed(run("transcribe", model, files[0]), "there is no file")
    for file in files:
        file.write_bytes(written(np.zeros(8000), 16000, "WAV", "PCM_16"))
    assert failed(run("transcribe", model, *files, "-o", out), "is no folder")
    out.mkdir()
    assert failed(run("transcribe", model, files[0], files[0], "-o", out), "one name")
    said = run("transcribe", model, *files, "-f", "json", "-o", out, *more)
    assert said.status == 0
    assert "1.0 s of audio in" in said.err
    assert json.loads((out / "a.json").read_text())["duration"] == 0.5
    assert (out / "b.json").exists()
    assert failed(run("transcribe", model, files[0], "--mode", "fast"), "mode is 'fast'")
    none = tmp_path / "none.onnx"
    assert failed(run("transcribe", model, files[0], "--vad", "--vad-model", none), "no file")
    said = run("transcribe", model, files[0], "-f", "vtt", "--mode", "chunked", *more)
    assert said.out.startswith("WEBVTT\n")


def test_shell_refuses_broken_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each by its name and by what is wrong with it, though a whole one stands beside it."""
    run = entry_point(monkeypatch, capsys)
    model, whole, broken = GOLDEN / "speech" / "whisper", tmp_path / "a.wav", tmp_path / "b.wav"
    whole.write_bytes(written(np.zeros(8000), 16000, "WAV", "PCM_16"))
    for name in ("cut", "0 channels", "2^31 samples", "NaN"):
        data, message = broken_files()[name]
        broken.write_bytes(data)
        said = run("transcribe", model, whole, broken, "--kv-tokens", 4096)
        assert failed(said, str(broken)), name
        assert re.search(message, said.err), said.err
