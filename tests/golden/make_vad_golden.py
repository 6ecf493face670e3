"""Makes speech/vad.json: parts with speech that faster-whisper finds in given probabilities, and
speech/silero.npz: probabilities of Silero's network.

    pip install faster-whisper==1.2.1
    python tests/golden/make_vad_golden.py

vad.json is a list of {"runs": [[probability, chunks], ...], "samples": N, "options": {...},
"parts": [[begin, end], ...], "times": [[seconds of the joined parts, is_end, seconds], ...]}.
silero.npz holds the probabilities of `heard()` and of its beginnings of these numbers of samples.
"""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import numpy as np
from faster_whisper import vad

HERE = Path(__file__).parent / "speech"
CASES = 60
BEGINNINGS = (0, 1, 511, 512, 513, 5000)


def heard() -> np.ndarray:
    """Vowels that glide in noise, and silence, float32 at 16 kHz."""
    random = np.random.default_rng(8)
    time = np.arange(16000 * 6) / 16000
    pitch = 130 + 25 * np.sin(2 * np.pi * 0.9 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / 16000
    voice = np.zeros(time.size)
    for middle, width in ((550, 250), (1400, 500), (2500, 200)):
        formant = middle + width * np.sin(2 * np.pi * 3 * time + middle)
        for k in range(1, 25):
            voice += np.sin(k * phase) / (1 + ((k * pitch - formant) / 90) ** 2)
    spoken = np.clip(np.sin(2 * np.pi * 3 * time) + 0.6, 0, 1)
    loud = np.where((time > 1) & (time < 4.2), 0.05 * spoken, 0)
    return (voice * loud + random.normal(0, 0.002, time.size)).astype(np.float32)


def make_parts() -> None:
    random = np.random.default_rng(11)
    cases = []
    for _ in range(CASES):
        runs = [
            [float(random.choice([0.02, 0.4, 0.6, 0.9])), int(random.integers(1, longest))]
            for longest in random.choice([2, 8, 60], int(random.integers(0, 12)))
        ]
        chunks = sum(count for _, count in runs)
        samples = chunks * 512 + int(random.integers(0, 512))
        options = {
            "threshold": float(random.choice([0.5, 0.3])),
            "neg_threshold": random.choice([None, 0.1]),
            "min_speech_duration_ms": int(random.choice([0, 250])),
            "max_speech_duration_s": float(random.choice([1e9, 30, 3])),
            "min_silence_duration_ms": int(random.choice([2000, 160, 0])),
            "speech_pad_ms": int(random.choice([400, 0, 1000])),
        }
        probabilities = np.repeat([one for one, _ in runs] + [0.0], [n for _, n in runs] + [1])
        network = mock.Mock(return_value=probabilities)
        with mock.patch.object(vad, "get_vad_model", return_value=network):
            parts = vad.get_speech_timestamps(
                np.zeros(samples, np.float32), vad.VadOptions(**options)
            )
        times = []
        if parts:
            known = vad.SpeechTimestampsMap(parts, 16000)
            ends = [end / 16000 for end in known.chunk_end_sample]
            for at in (0.0, *ends, *np.round(random.uniform(0, ends[-1] + 0.5, 3), 2).tolist()):
                times += [[at, end, known.get_original_time(at, is_end=end)] for end in (0, 1)]
        spans = [[part["start"], part["end"]] for part in parts]
        cases.append(
            {"runs": runs, "samples": samples, "options": options, "parts": spans, "times": times}
        )
    text = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "vad.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


def make_probabilities() -> None:
    model, arrays = vad.get_vad_model(), {}
    for size in (*BEGINNINGS, heard().size):
        samples = heard()[:size]
        # Two chunks of silence behind the end: the last one's end is not heard there.
        padded = np.pad(samples, (0, 1024 - size % 512))
        arrays[str(size)] = model(padded).reshape(-1)[: size // 512 + 1]
    np.savez_compressed(HERE / "silero.npz", **arrays)


if __name__ == "__main__":
    make_parts()
    make_probabilities()
