"""Transcription: openai-whisper's algorithm beside a reference in NumPy; many audios at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from checkpoints import GOLDEN
from packhorse import TextModel
from packhorse.audio import AudioModel, Language, Progress, Segment, TranscribeOptions
from packhorse_weights import inspect_checkpoint
from reference_speech import ReferenceWhisper
from speech_cases import sound

MODEL = GOLDEN / "speech" / "whisper"
SUPPRESSED = [*range(256)]
del SUPPRESSED[65:91], SUPPRESSED[32:40]


@pytest.fixture(scope="module")
def model() -> Iterator[AudioModel]:
    with AudioModel.load(MODEL, dtype="float32", kv_tokens=40_000, threads=2) as found:
        yield found


def whisper() -> ReferenceWhisper:
    checkpoint = inspect_checkpoint(MODEL)
    tensors = {
        ours: checkpoint.tensors[theirs].data.astype(np.float64)
        for ours, theirs in checkpoint.names.items()
    }
    return ReferenceWhisper(checkpoint.spec, tensors)


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"beam_size": 1}, {}),
        ({"beam_size": 3}, {}),
        ({"beam_size": 2, "patience": 2.0}, {}),
        ({"beam_size": 3, "initial_prompt": "ABBA BAB"}, {}),
        ({"beam_size": 2, "prefix": "ABBA"}, {}),
        ({"beam_size": 2, "condition_on_previous_text": False}, {"condition": False}),
        ({"beam_size": 2, "no_speech_threshold": 1e-9}, {"thresholds": (1e-9, -1.0)}),
        ({"beam_size": 2, "clip_timestamps": [0.5, 1.7, 2.0]}, {"clips": (0.5, 1.7, 2.0)}),
    ],
)
def test_beside_the_reference(
    model: AudioModel, options: dict[str, Any], changed: dict[str, Any]
) -> None:
    """Tokens, times and figures of segments at temperature 0."""
    audio = sound(2.3, 4)
    asked = {"beam_size": 1, "temperature": 0.0, "max_initial_timestamp": 0.2} | options
    found = model.transcribe(audio, suppress_tokens=SUPPRESSED[:150], **asked)
    patience = {
        name: options[name] for name in ("patience", "initial_prompt", "prefix") if name in options
    }
    suppress = model.tokens.suppressed(SUPPRESSED[:150])
    reference = whisper()
    expected = reference.transcribe(
        model.features(audio), model.tokens.encode, model.tokens.decode,
        beam_size=asked["beam_size"], suppress=suppress, most_initial=10, **patience, **changed,
    )  # fmt: skip
    assert len(found.segments) == len(expected)
    for segment, wanted in zip(found.segments, expected, strict=True):
        assert segment.tokens == wanted["tokens"]
        assert (segment.text, segment.seek) == (wanted["text"], wanted["seek"])
        for name in ("start", "end", "avg_logprob", "no_speech_prob", "compression_ratio"):
            assert getattr(segment, name) == pytest.approx(wanted[name], abs=2e-3), name
    assert found.duration == pytest.approx(2.3)
    assert found.text == "".join(one["text"] for one in expected).strip()


def test_many_at_once(model: AudioModel) -> None:
    """40 audios side by side have the words, times and bits that each has alone, with retries at
    higher temperatures among them."""
    audios = [sound(0.05 + 0.11 * i, i) for i in range(40)]
    options = {"beam_size": 3, "best_of": 2, "temperature": (0.0, 0.4, 1.0), "max_new_tokens": 12}
    together = model.transcribe(audios, **options)
    assert max(segment.temperature for one in together for segment in one.segments) > 0
    with AudioModel.load(MODEL, dtype="float32", kv_tokens=8192, threads=1) as other:
        for i in (0, 1, 9, 17, 28, 39):
            assert other.transcribe(audios[i], **options) == together[i]
    assert model.transcribe(audios[:3], **options) == together[:3]
    assert model.session.stats["pages_used"] == 0


def test_lists_and_silence(model: AudioModel) -> None:
    assert model.transcribe([]) == []
    empty = model.transcribe(np.zeros(0, np.float32))
    assert (empty.text, empty.segments, empty.duration) == ("", (), 0.0)
    assert model.transcribe(np.zeros(100, np.float32)).segments == ()


def test_stream(model: AudioModel) -> None:
    """Events come in the order of the audio, and are what `transcribe` gives."""
    audio = sound(3.0, 1)
    options = {"beam_size": 1, "temperature": 0.0}
    events = list(model.stream(audio, **options))
    whole = model.transcribe(audio, **options)
    assert isinstance(events[0], Language)
    assert events[0].code == whole.language
    assert 0 < events[0].probability <= 1
    assert tuple(one for one in events if isinstance(one, Segment)) == whole.segments
    done = [one.seconds for one in events if isinstance(one, Progress)]
    assert done == sorted(done)
    assert done[-1] == pytest.approx(3.0)
    # Half a frame, which no window has, is done with the others.
    *_, last = model.stream(sound(1.0125, 1), **options)
    assert last == Progress(1.0125)
    # Options are checked before anything is asked for.
    with pytest.raises(ValueError, match="beam_size is 0"):
        model.stream(audio, beam_size=0)
    with_break = model.stream(audio, **options)
    next(with_break)
    with_break.close()  # type: ignore[attr-defined]
    assert model.transcribe(audio, **options) == whole


def test_report(model: AudioModel) -> None:
    seen: list[tuple[int, float, float]] = []
    audios = [sound(1.5, 2), sound(0.4, 3)]
    model.transcribe(audios, report=lambda *one: seen.append(one), temperature=0.0)
    assert {one[0] for one in seen} == {0, 1}
    assert max(done for number, done, _ in seen if number == 0) == 1.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "xx"}, "language is 'xx', expected one of en, de, fr, or None"),
        ({"task": "sing"}, "task is 'sing', expected 'transcribe' or 'translate'"),
        ({"beam_size": 0}, "beam_size is 0, expected 1 to 64"),
        ({"best_of": True}, "best_of is True, expected 1 to 64"),
        ({"patience": 0}, "patience is 0, expected above 0"),
        ({"temperature": ()}, "temperature is .* a number from 0 on, or several"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"suppress_tokens": [5000]}, "suppress_tokens has token 5000, expected 0 to 317"),
        ({"suppress_tokens": [-2]}, "suppress_tokens is"),
        ({"clip_timestamps": [2.0, 1.0]}, "clip_timestamps is .* do not fall"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0, expected 1 or more, or None"),
        ({"initial_prompt": 3}, "initial_prompt is 3"),
        ({"initial_prompt": [5, 999]}, "initial_prompt has token 999"),
    ],
)
def test_refused_options(model: AudioModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.transcribe(sound(0.5, 0), **options)
    with pytest.raises(TypeError, match="transcribe has no option 'beams'"):
        model.transcribe(sound(0.5, 0), beams=3)


def test_names_the_audio_of_a_list(model: AudioModel) -> None:
    broken = np.array([0.0, np.nan], np.float32)
    with pytest.raises(ValueError, match=r"audio\[1\]: the audio has nan at sample 1"):
        model.transcribe([sound(0.5, 0), broken])
    with pytest.raises(ValueError, match=r"audio\[1\]: .*surrogates not allowed"):
        model.transcribe([sound(0.5, 0), "\ud800.wav"])
    assert model.transcribe(sound(0.5, 0), temperature=0.0).duration == 0.5


def test_numbers_of_numpy(model: AudioModel) -> None:
    audio = sound(0.5, 0)
    plain = model.transcribe(audio, beam_size=2, temperature=(0.0, 0.5), seed=2**61)
    given = {"beam_size": np.int32(2), "temperature": (0, np.float32(0.5)), "seed": np.int64(2**61)}
    assert model.transcribe(audio, **given) == plain


def test_prompts(model: AudioModel) -> None:
    """Hot words, prefix and languages change what stands before a window, and never fail however
    long they are."""
    audio = sound(1.2, 5)
    for options in (
        {"hotwords": "X" * 300},
        {"hotwords": "X" * 300, "initial_prompt": "Y" * 300},
        {"prefix": "Z" * 300},
        {"prefix": "Z", "without_timestamps": True},
        {"language": "de", "task": "translate"},
        {"initial_prompt": [5, 6, 7], "hotwords": "ABC"},
    ):
        found = model.transcribe(audio, temperature=0.0, beam_size=1, **options)
        assert found.language == options.get("language", found.language)
        assert found.text.startswith(options.get("prefix", "")[:20])


def test_a_cache_holds_a_window() -> None:
    """A smaller one would cut windows short."""
    for size in (0, 64, 127):
        with pytest.raises(
            ValueError, match=f"kv_tokens is {size}, expected 128 at least: a windo"
        ):
            AudioModel.load(MODEL, kv_tokens=size)
    with AudioModel.load(MODEL, kv_tokens=128) as model:
        assert model.transcribe(sound(0.5, 0), beam_size=1, temperature=0.0).duration == 0.5


def test_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match="hears no audio: load it by packhorse.TextModel"):
        AudioModel.load(GOLDEN / "text_to_text" / "t5")
    with pytest.raises(ValueError, match="load it by packhorse.audio.AudioModel"):
        TextModel.load(MODEL)
    with pytest.raises(ValueError, match="max_tokens is 20, expected 50 at least"):
        AudioModel.load(MODEL, max_tokens=20)


def test_options_have_the_defaults_of_openai() -> None:
    found = TranscribeOptions()
    assert found.temperatures == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert replace(found, temperature=0.3).temperatures == (0.3,)
