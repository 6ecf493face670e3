"""Speech in, text with times out (`AudioModel`), and audio made the input of such models (with the
extra `audio`).

    with packhorse.audio.AudioModel.load("openai/whisper-base") as model:
        found = model.transcribe("talk.flac")
        for segment in found.segments:
            print(segment.start, segment.end, segment.text)
"""

from packhorse.audio.decoding import AudioSource, load_audio
from packhorse.audio.features import FrameMaker, log_mel
from packhorse.audio.model import AudioModel
from packhorse.audio.options import TranscribeOptions
from packhorse.audio.results import Segment, Transcription, Word
from packhorse.audio.transcriber import Language, Progress
from packhorse.audio.vad import VadOptions

__all__ = [
    "AudioModel",
    "AudioSource",
    "FrameMaker",
    "Language",
    "Progress",
    "Segment",
    "TranscribeOptions",
    "Transcription",
    "VadOptions",
    "Word",
    "load_audio",
    "log_mel",
]
