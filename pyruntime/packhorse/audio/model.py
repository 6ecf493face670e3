"""AudioModel: speech in, text with times out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from packhorse_weights.spec import hears

from packhorse.audio.alignment import alignment_heads
from packhorse.audio.chunked import Chunked, run_chunked, windows_of
from packhorse.audio.decoding import SAMPLE_RATE, AudioSource, Samples, load_audio
from packhorse.audio.features import FRAMES_PER_SECOND, FrameMaker
from packhorse.audio.options import TranscribeOptions
from packhorse.audio.results import Segment, Transcription
from packhorse.audio.running import News, run_all
from packhorse.audio.silero import SpeechDetector, load_silero
from packhorse.audio.tokens import SpeechTokens
from packhorse.audio.transcriber import Language, Progress, Steps, Transcriber
from packhorse.audio.vad import Part, VadOptions, speech_parts
from packhorse.audio.voiced import HOP, VoicedTimes, joined, with_whole_times
from packhorse.audio.windows import clips_of
from packhorse.generation.session import GenerationSession
from packhorse.kv_pages import PAGE_TOKENS
from packhorse.load_options import LoadOptions, ModelPath
from packhorse.named_errors import named
from packhorse.names import AskedDtype
from packhorse.option_fields import takes_options
from packhorse.progress_bar import shows_loading
from packhorse.text.checks import errors_of_tokenizers

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.load_options import LoadCall

Report = Callable[[int, float, float], None]
Self = TypeVar("Self", bound="AudioModel")
_FRAMES_PER_TOKEN = 2  # that the encoder makes one of
# Audios that are transcribed side by side, at least, whose frames are held: 80 bands of an hour are
# 110 MiB.
_AT_ONCE = 64
_CHUNKED_SILENCE_MS = 160  # that ends a part where parts are put together into windows
# Windows that a GPU encodes together, so that its products are large.
_WINDOWS_ON_GPU = 4


class AudioModel:
    """A model of speech (Whisper) and its tokenizer. Made by `load`.

    Any number of threads may use one; what they transcribe runs together. A text does not depend on
    what else runs.
    """

    def __init__(
        self,
        session: GenerationSession,
        tokenizer: Any,
        where: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`tokenizer`: of the package `tokenizers`. `where`: its file, for messages. `settings`: of
        generation_config.json."""
        if not session.frame_features:
            raise ValueError("this model hears no audio: load it by packhorse.TextModel")
        self.session = session
        self._maker = FrameMaker(session.device, session.frame_features)
        settings = settings or {}
        known = settings.get("is_multilingual")
        multilingual = known if isinstance(known, bool) else None
        where = where or "the model"
        self.tokens = SpeechTokens(tokenizer, session.vocab_size, where, multilingual)
        self._window = _FRAMES_PER_TOKEN * session.max_source_tokens
        self._context = session.max_context
        self._heads = alignment_heads(settings.get("alignment_heads"), session.config)

    @classmethod
    @shows_loading
    @takes_options(LoadOptions)
    def load(
        cls: type[Self],
        path: ModelPath,
        device: str = "cpu",
        dtype: AskedDtype | None = None,
        *,
        progress: bool | None = None,
        **options: Unpack[LoadCall],
    ) -> Self:
        """Loads Whisper: a Hugging Face folder, or one of CTranslate2.

        {options}

        The other arguments are those of `Session.load`. Raises as that does, and ValueError for a
        model that hears no audio.
        """
        from packhorse_weights import find_model, inspect_checkpoint
        from packhorse_weights.generation_files import generation_config

        asked = LoadOptions(device=device, dtype=dtype, **options)
        path = find_model(path, asked.revision)
        asked = replace(asked, revision=None)
        spec = inspect_checkpoint(path, **asked.reading()).spec
        if not hears(spec):
            raise ValueError(f"{path} hears no audio: load it by packhorse.TextModel")
        longest = int(next(iter(spec["stacks"].values()))["max_seqlen"])
        if asked.max_tokens is None:
            windows = 1 if device == "cpu" else _WINDOWS_ON_GPU
            asked = replace(asked, max_tokens=max(2048, windows * longest))
        elif asked.max_tokens < longest:
            raise ValueError(
                f"max_tokens is {asked.max_tokens}, expected {longest} at least: a step reads a "
                "window of audio as a whole"
            )
        least = -(-longest // PAGE_TOKENS) * PAGE_TOKENS + PAGE_TOKENS
        if asked.kv_tokens is not None and asked.kv_tokens < least:
            raise ValueError(
                f"kv_tokens is {asked.kv_tokens}, expected {least} at least: a window of audio "
                f"takes {longest} tokens of the cache, and its text more"
            )
        root = path if path.is_dir() else path.parent
        tokenizer, file = _tokenizer(root)
        settings = generation_config(root)
        return cls(GenerationSession._load(path, asked), tokenizer, file, settings)

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that the model knows; one that knows English alone has "en"."""
        return tuple(self.tokens.languages) or ("en",)

    def features(self, audio: AudioSource, rate: int | None = None) -> np.ndarray[Any, Any]:
        """Frames of an audio as the encoder reads them, float32 [frames, mels] (`log_mel`)."""
        return self._frames(load_audio(audio, rate))

    def _frames(self, samples: Samples) -> np.ndarray[Any, Any]:
        return self._maker.log_mel([samples], end="silence")[0]

    def transcribe(
        self,
        audio: AudioSource | Sequence[AudioSource],
        *,
        rate: int | None = None,
        report: Report | None = None,
        **options: Any,
    ) -> Any:
        """Transcribes an audio, or a list of them, which run side by side.

        audio    path, bytes or samples, as of `load_audio`; or a list of these
        rate     samples a second of arrays; None: 16000
        report   is called whenever a window is done: (number of the audio, seconds of it that are
                 done, seconds of it)
        options  fields of `TranscribeOptions`

        Gives a `Transcription`, or a list of them. Raises as `load_audio`, and ValueError for
        options that are not acceptable; what is wrong with one of a list names its place.
        """
        audios, alone = _as_list(audio)
        found: list[list[Segment]] = [[] for _ in audios]
        languages: list[Language | None] = [None] * len(audios)
        durations = [0.0] * len(audios)
        for number, event in self._run(audios, rate, options, durations, alone):
            if isinstance(event, Segment):
                found[number].append(event)
            elif isinstance(event, Language):
                languages[number] = event
            elif report is not None:
                done = durations[number] if event is None else event.seconds
                report(number, done, durations[number])
        results = []
        for segments, language, duration in zip(found, languages, durations, strict=True):
            code, probability = language if language is not None else ("en", 0.0)
            text = "".join(segment.text for segment in segments).strip()
            results.append(Transcription(text, tuple(segments), code, probability, duration))
        return results[0] if alone else results

    def stream(
        self, audio: AudioSource, *, rate: int | None = None, **options: Any
    ) -> Iterator[Segment | Language | Progress]:
        """Transcribes an audio and gives its language, each segment as soon as it is there, and how
        many seconds are done, at the end all of them. Arguments and errors are those of
        `transcribe`; an iterator that is closed cancels what runs."""
        durations = [0.0]
        news = self._run([audio], rate, options, durations, True)
        return _events(news, durations)

    def _run(
        self,
        audios: Sequence[AudioSource],
        rate: int | None,
        given: dict[str, Any],
        durations: list[float],
        alone: bool,
    ) -> Iterator[News]:
        options = _options(given)
        self._check(options)
        self.session.check_open()
        detector = load_silero(options.vad_model) if options.vad_filter else None

        def load(number: int) -> Samples:
            audio = audios[number]
            try:
                samples = load_audio(audio, rate if isinstance(audio, np.ndarray) else None)
            except (ValueError, TypeError) as error:
                if alone:
                    raise
                raise named(error, f"audio[{number}]") from None
            durations[number] = samples.size / SAMPLE_RATE
            return samples

        numbers = range(len(audios))
        at_once = max(_AT_ONCE, self.session._options.max_sequences or 0)
        if options.mode == "chunked":
            chunked = (partial(self._chunked, load, i, options, detector) for i in numbers)
            return run_chunked(self.session, chunked, at_once)
        steps = (partial(self._sequential, load, i, options, detector) for i in numbers)
        return run_all(self.session, steps, at_once)

    def _sequential(
        self,
        load: Callable[[int], Samples],
        number: int,
        options: TranscribeOptions,
        detector: SpeechDetector | None,
    ) -> Steps:
        samples = load(number)
        if detector is None:
            return self._transcribe(samples, options)
        parts = speech_parts(
            detector(samples).tolist(), samples.size, VadOptions.of(options.vad_parameters)
        )
        times = VoicedTimes(parts, samples.size / SAMPLE_RATE)
        return with_whole_times(self._transcribe(joined(samples, parts), options), times)

    def _transcribe(self, samples: Samples, options: TranscribeOptions) -> Steps:
        frames = self._frames(samples)
        return Transcriber(
            frames, self.tokens, options, self._window, self._context, self._heads
        ).run()

    def _chunked(
        self,
        load: Callable[[int], Samples],
        number: int,
        options: TranscribeOptions,
        detector: SpeechDetector | None,
    ) -> Chunked:
        samples = load(number)
        longest = self._window * SAMPLE_RATE // FRAMES_PER_SECOND
        inner = replace(options, condition_on_previous_text=False, clip_timestamps=())

        def decode(heard: Samples, language: str | None, first: bool) -> Steps:
            asked = inner if options.language is not None else replace(inner, language=language)
            return self._transcribe(heard, asked if first else replace(asked, prefix=None))

        if detector is None:
            ends = clips_of(options.clip_timestamps, samples.size // HOP)
            parts = [Part(begin * HOP, end * HOP) for begin, end in ends]
            if not options.clip_timestamps:
                parts = [Part(0, samples.size)]
        else:
            seconds = longest / SAMPLE_RATE
            asked = VadOptions.of(
                options.vad_parameters,
                min_silence_duration_ms=_CHUNKED_SILENCE_MS,
                max_speech_duration_s=seconds,
            )
            if asked.max_speech_duration_s > seconds:
                asked = replace(asked, max_speech_duration_s=seconds)
            parts = speech_parts(detector(samples).tolist(), samples.size, asked)
        windows = windows_of(samples, parts, longest)
        return Chunked(windows, decode, VoicedTimes(parts, samples.size / SAMPLE_RATE))

    def _check(self, options: TranscribeOptions) -> None:
        language = options.language
        if language is not None and language not in self.languages:
            known = ", ".join(self.languages)
            raise ValueError(f"language is {language!r:.40}, expected one of {known}, or None")
        if options.task == "translate" and not self.tokens.multilingual:
            raise ValueError("task is 'translate', but this model knows English alone")
        most = self.session._options.max_sequences or 64
        for name in ("beam_size", "best_of"):
            if getattr(options, name) > most:
                raise ValueError(
                    f"{name} is {getattr(options, name)}, expected at most max_sequences {most}"
                )
        for name in ("suppress_tokens", "initial_prompt"):
            given = getattr(options, name)
            for token in () if given is None or isinstance(given, str) else given:
                if token >= self.tokens.vocab_size:
                    raise ValueError(
                        f"{name} has token {token}, expected 0 to {self.tokens.vocab_size - 1}: "
                        "the model knows no other"
                    )

    def close(self) -> None:
        """Closes the session (`Session.close`)."""
        self.session.close()
        self._maker.close()

    def __enter__(self: Self) -> Self:
        self.session.check_open()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session!r})"


def _events(
    news: Iterator[News], durations: Sequence[float]
) -> Iterator[Segment | Language | Progress]:
    """Events of one audio; the last window's frames may end before its samples do."""
    done = 0.0
    for _, event in news:
        if isinstance(event, Progress):
            done = event.seconds
        if event is not None:
            yield event
        elif done != durations[0]:
            yield Progress(durations[0])


def _options(given: dict[str, Any]) -> TranscribeOptions:
    unknown = given.keys() - TranscribeOptions.__dataclass_fields__.keys()
    if unknown:
        known = ", ".join(TranscribeOptions.__dataclass_fields__)
        raise TypeError(f"transcribe has no option {min(unknown)!r}; it has {known}")
    return TranscribeOptions(**given)


def _as_list(audio: Any) -> tuple[list[AudioSource], bool]:
    """(audios, whether there is one that is no list)"""
    if isinstance(audio, list | tuple):
        return list(audio), False
    return [audio], True


def _tokenizer(root: Path) -> tuple[Any, str]:
    """(the tokenizer of a folder, its file)"""
    from packhorse_weights.files import read_bytes

    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        from packhorse_weights.extras import missing_package

        raise missing_package("text", "tokenizers", "speech") from None
    file = root / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"{root} has no tokenizer.json")
    with errors_of_tokenizers(str(file)):
        return Tokenizer.from_buffer(read_bytes(file)), str(file)
