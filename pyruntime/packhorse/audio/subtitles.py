"""Segments as text, subtitles and tables, in the forms of openai-whisper."""

from __future__ import annotations

import json
from collections.abc import Sequence

from packhorse.audio.results import Segment, Transcription

FORMATS = ("txt", "srt", "vtt", "tsv", "json")


def timestamp(seconds: float, comma: bool = False, hours: bool = False) -> str:
    """[hh:]mm:ss.mmm; hours where there are any, or always. comma: in place of the point."""
    millis = round(max(0.0, seconds) * 1000)
    hour, millis = divmod(millis, 3_600_000)
    minute, millis = divmod(millis, 60_000)
    second, millis = divmod(millis, 1000)
    front = f"{hour:02d}:" if hours or hour else ""
    return f"{front}{minute:02d}:{second:02d}{',' if comma else '.'}{millis:03d}"


def _shown(segment: Segment) -> str:
    # An arrow would end a line of times.
    return segment.text.strip().replace("-->", "->")


def _txt(segments: Sequence[Segment]) -> str:
    return "".join(f"{segment.text.strip()}\n" for segment in segments)


def _srt(segments: Sequence[Segment]) -> str:
    return "".join(
        f"{number}\n{timestamp(segment.start, True, True)} --> "
        f"{timestamp(segment.end, True, True)}\n{_shown(segment)}\n\n"
        for number, segment in enumerate(segments, 1)
    )


def _vtt(segments: Sequence[Segment]) -> str:
    cues = "".join(
        f"{timestamp(segment.start)} --> {timestamp(segment.end)}\n{_shown(segment)}\n\n"
        for segment in segments
    )
    return f"WEBVTT\n\n{cues}"


def _tsv(segments: Sequence[Segment]) -> str:
    rows = "".join(
        f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t"
        f"{segment.text.strip().replace(chr(9), ' ')}\n"
        for segment in segments
    )
    return f"start\tend\ttext\n{rows}"


_WRITERS = {"txt": _txt, "srt": _srt, "vtt": _vtt, "tsv": _tsv}


def render(found: Transcription, form: str) -> str:
    """The transcription as "txt" (a line for each segment), "srt", "vtt", "tsv" (times in
    milliseconds) or "json". Raises ValueError for another form."""
    if form == "json":
        fields = {
            "text": found.text,
            "segments": [segment.as_dict() for segment in found.segments],
            "language": found.language,
            "language_probability": found.language_probability,
            "duration": found.duration,
        }
        return json.dumps(fields, ensure_ascii=False) + "\n"
    if form not in _WRITERS:
        raise ValueError(f"format is {form!r:.40}, expected one of {', '.join(FORMATS)}")
    return _WRITERS[form](found.segments)
