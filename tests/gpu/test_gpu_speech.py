"""Models of speech on the GPU: against transformers, the same bits whatever else runs, rules of
times, retries and beams of many audios at once, and encoders and caches in 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from gpu_support import DEVICE, Precision
from packhorse import GenerationSession, Sampling
from packhorse.audio import AudioModel, FrameMaker, Segment, log_mel
from speech_cases import (
    ARRAYS,
    FRAMES,
    MODEL,
    PROMPTS,
    TARGETS,
    check_order_of_times,
    log_softmax,
    run,
    sound,
    windows,
)
from transformers import WhisperConfig, WhisperForConditionalGeneration

TOLD = 128  # tokens that a request tells
SCORING = Sampling(max_new_tokens=1, logprobs=TOLD, prompt_logprobs=TOLD, ignore_eos=True)
PAGE = 64  # tokens of a page of the cache

Rows = list[list[tuple[int, float]]]  # the most likely tokens and their log-probabilities


@dataclass(frozen=True)
class Case:
    """A model, windows with texts, and its log-probabilities in float32 after each token of these.
    `least`: of `correlation`, in 8 bits."""

    folder: Path
    frames: Any
    targets: list[Any]
    logprobs: Any
    least: float


def logits_of_torch(case: Case, device: str, dtype: torch.dtype) -> np.ndarray:
    model = WhisperForConditionalGeneration.from_pretrained(case.folder, dtype=dtype)
    model = model.to(device).eval()
    rows = []
    for frames, target in zip(case.frames, case.targets, strict=True):
        heard = torch.as_tensor(frames.T.copy()[None], device=device, dtype=dtype)
        ids = torch.as_tensor(target[None], device=device).long()
        with torch.inference_mode():
            rows.append(model(heard, decoder_input_ids=ids).logits[0].float().cpu().numpy())
    return np.concatenate(rows)


def make_large(folder: Path) -> Case:
    """A random model of Whisper's window of 30 seconds, 80 bands and heads of 64."""
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=300, num_mel_bins=80, d_model=128, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=256,
        decoder_ffn_dim=256, pad_token_id=0, bos_token_id=0, eos_token_id=0,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None, init_std=0.1,
    )  # fmt: skip
    WhisperForConditionalGeneration(config).save_pretrained(folder)
    random = np.random.default_rng(0)
    frames = random.normal(0, 1, (3, 3000, 80)).astype(np.float32)
    targets = [random.integers(0, 300, size).astype(np.int32) for size in (4, 1, 20)]
    case = Case(folder, frames, targets, None, 0)
    logits = logits_of_torch(case, "cpu", torch.float32)
    # Frames of another window give 0.991, and e4m3 rounded in PyTorch 0.9986.
    return Case(folder, frames, targets, log_softmax(logits), 0.995)


@pytest.fixture(scope="module", params=["tiny", "thirty-seconds"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    if request.param == "tiny":
        # Frames of another window give 0.79, and e4m3 rounded in PyTorch 0.989.
        return Case(MODEL, FRAMES, TARGETS, log_softmax(ARRAYS["logits"]), 0.95)
    return make_large(tmp_path_factory.mktemp("whisper"))


def load(precision: Precision, folder: Path = MODEL, **options: Any) -> GenerationSession:
    given: dict[str, Any] = {"kv_tokens": 200 * PAGE, **precision.options(), **options}
    return GenerationSession.load(folder, **given)


def scored(session: GenerationSession, case: Case, together: bool = True) -> Rows:
    """Rows after each token of all targets, of requests that run side by side or one by one."""
    rows: list[Any] = []
    requests = []
    for frames, target in zip(case.frames, case.targets, strict=True):
        requests.append(session.submit_features(target, frames, SCORING))
        if not together:
            requests[-1].result()
    for request in requests:
        found = request.result()
        assert found.prompt_logprobs is not None
        assert found.top_logprobs is not None
        rows += [*found.prompt_logprobs.top, *found.top_logprobs]
    return rows


def correlation(rows: Rows, case: Case) -> float:
    """Mean over all rows of what log-probabilities have in common with those in float32."""
    found = []
    for row, expected in zip(rows, case.logprobs, strict=True):
        ids, values = zip(*row, strict=True)
        found.append(np.corrcoef(values, expected[[*ids]])[0, 1])
    return float(np.mean(found))


def test_transformers(kernels: str, precision: Precision, case: Case) -> None:
    """The error of log-probabilities is at most twice that of PyTorch in the same dtype. Windows
    have the same bits alone and together."""
    with load(precision, case.folder, max_tokens=4500, prefix_cache=False) as session:
        assert session.frame_features == case.frames.shape[2]
        assert 2 * session.max_source_tokens == case.frames.shape[1]
        rows = scored(session, case)
        assert scored(session, case, together=False) == rows
        assert session.stats["pages_used"] == 0
    of_torch = log_softmax(logits_of_torch(case, DEVICE, precision.dtype))
    ours, theirs = [], []
    for row, expected, other in zip(rows, case.logprobs, of_torch, strict=True):
        ids, values = zip(*row, strict=True)
        ours.append(np.array(values) - expected[[*ids]])
        theirs.append(other[[*ids]] - expected[[*ids]])
    our_mean, their_mean = (np.abs(np.concatenate(x)).mean() for x in (ours, theirs))
    assert our_mean <= 2 * their_mean + precision.epsilon, f"{our_mean:.1e}, {their_mean:.1e}"


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7, "seed": 1, "n": 2},
        {"num_beams": 3, "filtered_logprobs": True, "suppress_tokens": [3, 70]},
        {"filtered_logprobs": True, "suppress_tokens": [*range(20, 60)]},
    ],
    ids=["samples", "beams", "greedy"],
)
def test_alone_and_together(kernels: str, precision: Precision, settings: Any) -> None:
    """Windows of any even length have the bits of a run alone, and equal ones share the encoder."""
    sampling = Sampling(max_new_tokens=12, logprobs=0, ignore_eos=True, **settings)
    with load(precision, max_tokens=120, max_sequences=8) as session:
        requests = [
            session.submit_features(prompt, window, sampling)
            for prompt, window in zip(PROMPTS, windows(), strict=True)
        ]
        together = [[(one.ids, one.logprobs) for one in request.results()] for request in requests]
        assert session.stats["prefix_hit_tokens"] >= 50
    with load(precision, prefix_cache=False) as session:
        for prompt, window, wanted in zip(PROMPTS, windows(), together, strict=True):
            found = run(session, prompt, window, sampling)
            assert [(one.ids, one.logprobs) for one in found] == wanted


@pytest.mark.parametrize("window", [0, 1, 2])
def test_order_of_times(precision: Precision, window: int) -> None:
    with load(precision) as session:
        check_order_of_times(session, FRAMES[window])


@pytest.mark.parametrize("dtype", ["int8", "float8"])
def test_encoder_in_8_bits(kernels: str, case: Case, dtype: Any) -> None:
    """Log-probabilities are near those in float32, and have the same bits alone and together."""
    if dtype == "float8" and (kernels != "sm90" or torch.cuda.get_device_capability(0) != (9, 0)):
        pytest.skip("needs compute capability 9.0 and its own kernels")
    options: dict[str, Any] = {"kv_tokens": 200 * PAGE, "max_tokens": 4500, "prefix_cache": False}
    with GenerationSession.load(case.folder, DEVICE, dtype, **options) as session:
        rows = scored(session, case)
        assert scored(session, case, together=False) == rows
    assert correlation(rows, case) >= case.least


def test_float8_cache(precision: Precision, case: Case) -> None:
    """Keys and values of windows and texts in e4m3: near those in float32, the same bits alone and
    together."""
    options: dict[str, Any] = {"max_tokens": 4500, "prefix_cache": False}
    with load(precision, case.folder, kv_cache_dtype="float8", **options) as session:
        rows = scored(session, case)
        assert scored(session, case, together=False) == rows
    assert correlation(rows, case) >= case.least


def test_weights_of_cross_attention(precision: Precision, case: Case) -> None:
    heads = [(0, 1), (1, 0)]
    sampling = Sampling(max_new_tokens=1, alignment_heads=heads, ignore_eos=True)
    model = WhisperForConditionalGeneration.from_pretrained(
        case.folder, attn_implementation="eager"
    ).eval()
    with load(precision, case.folder) as session:
        for frames, target in zip(case.frames, case.targets, strict=True):
            found = run(session, target, frames, sampling)[0].alignment
            heard, ids = torch.as_tensor(frames.T.copy()[None]), torch.as_tensor(target[None])
            with torch.inference_mode():
                weights = model(
                    heard, decoder_input_ids=ids.long(), output_attentions=True
                ).cross_attentions
            expected = np.stack([weights[layer][0, head].numpy() for layer, head in heads])
            assert found.shape == expected.shape
            np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-4)
            assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] >= 0.99


@pytest.fixture(scope="module")
def model() -> Iterator[AudioModel]:
    with AudioModel.load(MODEL, DEVICE, "float16", kv_tokens=40_000) as found:
        yield found


def test_many_at_once(model: AudioModel) -> None:
    """40 audios side by side have the words, times and bits that each has alone, with retries at
    higher temperatures among them."""
    audios = [sound(0.05 + 0.11 * i, i) for i in range(40)]
    options: dict[str, Any] = {"beam_size": 3, "best_of": 2, "temperature": (0.0, 0.4, 1.0)}
    options["max_new_tokens"] = 12
    together = model.transcribe(audios, **options)
    assert max(segment.temperature for one in together for segment in one.segments) > 0
    with AudioModel.load(MODEL, DEVICE, "float16", kv_tokens=8192, max_tokens=60) as other:
        for i in (0, 1, 9, 17, 28, 39):
            assert other.transcribe(audios[i], **options) == together[i]
    assert model.transcribe(audios[:3], **options) == together[:3]
    assert model.session.stats["pages_used"] == 0


def test_times_of_words(model: AudioModel) -> None:
    """Words, their times and probabilities have the bits that they have alone."""
    audios = [sound(0.3 + 0.37 * i, i) for i in range(8)]
    options: dict[str, Any] = {
        "beam_size": 2, "temperature": 0.0, "max_new_tokens": 12, "word_timestamps": True,
        "suppress_tokens": [*range(32), *range(127, 256)], "log_prob_threshold": None,
        "no_speech_threshold": None, "compression_ratio_threshold": None,
    }  # fmt: skip
    together = model.transcribe(audios, **options)
    words = [word for one in together for segment in one.segments for word in segment.words or ()]
    assert words
    assert all(word.start <= word.end and 0 <= word.probability <= 1 for word in words)
    with AudioModel.load(MODEL, DEVICE, "float16", kv_tokens=8192, max_tokens=60) as other:
        for audio, found in zip(audios, together, strict=True):
            assert other.transcribe(audio, **options) == found


def test_log_probabilities_among_some_tokens(precision: Precision) -> None:
    """Those of a prompt's tokens among the first 100 of all."""
    sampling = Sampling(
        max_new_tokens=0, prompt_logprobs=0, filtered_logprobs=True, allowed_ids=range(100)
    )
    target = TARGETS[2]
    with load(precision) as session:
        found = session.submit_features(target, FRAMES[2], sampling).result()
    assert found.prompt_logprobs is not None
    expected = log_softmax(ARRAYS["logits"][-len(target) :, :100])
    for row, (token, logprob) in enumerate(
        zip(target[1:].tolist(), found.prompt_logprobs.logprobs, strict=True)
    ):
        if token < 100:
            assert logprob == pytest.approx(expected[row, token], abs=200 * precision.epsilon)
        else:
            assert logprob == -np.inf


def test_empty_and_short_audio(model: AudioModel) -> None:
    assert model.transcribe([]) == []
    empty = model.transcribe(np.zeros(0, np.float32))
    assert (empty.text, empty.segments, empty.duration) == ("", (), 0.0)
    assert model.transcribe(np.zeros(100, np.float32)).segments == ()
    audio = sound(1.5, 2)
    whole = model.transcribe(audio, beam_size=1, temperature=0.0)
    events = model.stream(audio, beam_size=1, temperature=0.0)
    assert tuple(one for one in events if isinstance(one, Segment)) == whole.segments


def test_requests_are_checked(model: AudioModel) -> None:
    """After a refusal the session gives the same bits."""
    session = model.session
    first = run(session, [257], FRAMES[0], Sampling(max_new_tokens=3, logprobs=0))
    for frames, message in [
        (np.zeros((3, 6)), "expected frames of 6 and an even number of them"),
        (np.zeros((102, 6)), "102 frames, expected at most 100"),
        (np.full((2, 6), np.nan), "frame 0 of the source has nan at 0, expected finite numbers"),
    ]:
        with pytest.raises(ValueError, match=message):
            session.submit_features([257], frames)
    with pytest.raises(ValueError, match="language is 'xx', expected one of en, de, fr, or None"):
        model.transcribe(sound(0.3, 0), language="xx")
    again = run(session, [257], FRAMES[0], Sampling(max_new_tokens=3, logprobs=0))
    assert (again[0].ids, again[0].logprobs) == (first[0].ids, first[0].logprobs)


@pytest.mark.parametrize("end", ["reflect", "silence"])
@pytest.mark.parametrize("num_mels", [80, 128])
def test_frames(kernels: str, num_mels: int, end: Literal["reflect", "silence"]) -> None:
    """Frames of the device are those of the CPU, alone and beside others, in one launch or many."""
    random = np.random.default_rng(num_mels)
    lengths = (0, 201, 399, 480_000, 320, 16_001, 9_600_000, 640)
    lengths += (0, 1, 159, 160) if end == "silence" else ()
    audios = [random.normal(0, 0.1, n).astype(np.float32) for n in lengths]
    audios[4][:] = 0
    maker = FrameMaker(DEVICE, num_mels)
    together = maker.log_mel(audios, end=end)
    for audio, found in zip(audios, together, strict=True):
        expected = log_mel(audio, num_mels, end=end)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_array_equal(maker.log_mel([audio], end=end)[0], found)
    maker.close()
