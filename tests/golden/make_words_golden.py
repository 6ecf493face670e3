"""Makes speech/words.json: words of texts of several languages and their times, as openai's own
code finds them with the tokenizer of its multilingual models.

    pip install openai-whisper==20250625
    python tests/golden/make_words_golden.py

Attention and probabilities are those of tests/python/support/word_cases.py, so that no model runs.
A text is two segments, of which the second begins in its middle.

    vocabulary    token: its bytes as hexadecimal digits, of the tokens of all texts
    special       name: token, of those that are no text
    texts         for each: language, tokens, `split` (words with their tokens, by
                  split_to_word_tokens), and by add_word_timestamps `segments`: start, end and words
                  with start, end and probability
    alignment     for each model of openai: [layers, heads, tokens of its vocabulary], and (layer,
                  head) of the cross attention that its words are timed by
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import whisper
from whisper.timing import add_word_timestamps
from whisper.tokenizer import get_tokenizer

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python" / "support"))
from word_cases import FRAMES, HEADS, probabilities, weights  # noqa: E402

TEXTS = {
    "en": ' "Well," she said (twice), "it\'s 3.5 miles - don\'t!" Gone.',
    "de": " Grüß Gott, Frau Müßig! Wie geht's? „Gut“, sagte sie…",
    "es": " ¿Qué tal? ¡Mañana será otro día! Adiós.",
    "ru": " Привет, как дела? Всё хорошо.",
    "ar": " مرحبا، كيف حالك؟ أنا بخير.",
    "hi": " नमस्ते दुनिया। आप कैसे हैं?",
    "ko": " 안녕하세요, 반갑습니다. 뷁!",
    "zh": "你好,世界!龘靐很难写。「是」",
    "ja": "こんにちは。今日は「寒い」ですね、鱻。",
    "th": "สวัสดีครับ วันนี้อากาศดี",
    "lo": "ສະບາຍດີ ທ່ານ",
    "my": "မင်္ဂလာပါ။ နေကောင်းလား",
    "yue": "你食咗飯未呀?𨋢壞咗。",
    "fr": " Ah 🫠🇫🇷 voilà ! «Oui.»",
}

SIZES = {
    "tiny": (4, 6),
    "base": (6, 8),
    "small": (12, 12),
    "medium": (24, 16),
    "large-v2": (32, 20),
    "large-v3": (32, 20),
    "turbo": (4, 20),
}


def alignment(name: str) -> list[Any]:
    layers, heads = SIZES[name.removesuffix(".en")]
    packed = gzip.decompress(base64.b85decode(whisper._ALIGNMENT_HEADS[name]))
    chosen = np.frombuffer(packed, bool).reshape(layers, heads)
    tokens = 51864 if name.endswith(".en") else 51866 if name in ("large-v3", "turbo") else 51865
    return [[layers, heads, tokens], np.argwhere(chosen).tolist()]


class Recording:
    """A layer of cross attention that hands out what a real one computes."""

    def __init__(self) -> None:
        self.hooks: list[Any] = []

    def register_forward_hook(self, hook: Any) -> Any:
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: None)


def model_of(seed: int, prompt: int, text: list[int]) -> Any:
    """The parts of a model that openai's code reads: a prompt of so many tokens, the text, and its
    end."""
    layers = [SimpleNamespace(cross_attn=Recording()) for _ in range(2)]
    rows = prompt + len(text) + 1
    scores = torch.log(torch.tensor(weights(seed, rows)))
    chosen = probabilities(seed, len(text))
    logits = torch.full((1, rows, 51865), -torch.inf, dtype=torch.float64)
    for i, token in enumerate(text):
        row = logits[0, prompt - 1 + i]
        row[token], row[(token + 1) % 50000] = np.log(chosen[i]), np.log(1 - chosen[i])

    def read(_mel: Any, tokens: Any) -> Any:
        assert tokens.shape == (1, rows)
        for number, layer in enumerate(layers):
            found = torch.zeros(1, 3, rows, FRAMES // 2)
            for one, (own, head) in enumerate(HEADS):
                if own == number:
                    found[0, head] = scores[one]
            for hook in layer.cross_attn.hooks:
                hook(None, None, (None, found))
        return logits

    read.device, read.dims = "cpu", SimpleNamespace(n_text_layer=2)  # type: ignore[attr-defined]
    read.decoder = SimpleNamespace(blocks=layers)  # type: ignore[attr-defined]
    read.alignment_heads = SimpleNamespace(  # type: ignore[attr-defined]
        indices=lambda: torch.tensor(HEADS).T
    )
    return read


def case(seed: int, language: str, text: str) -> tuple[dict[str, Any], Any]:
    known = get_tokenizer(True, language=language, task="transcribe", num_languages=100)
    tokens = known.encode(text)
    if language == "fr":
        tokens = [*tokens, known.encode("鱻")[0]]  # bytes that no others complete
    split = list(zip(*known.split_to_word_tokens(tokens), strict=True))
    half = len(tokens) // 2
    segments = [
        {"seek": 3000, "start": 30.4, "end": 32.6, "tokens": tokens[:half]},
        {"seek": 3000, "start": 32.6, "end": 35.9, "tokens": tokens[half:]},
    ]
    add_word_timestamps(
        segments=segments,
        model=model_of(seed, len(known.sot_sequence) + 1, tokens),
        tokenizer=known,
        mel=torch.zeros(1),
        num_frames=FRAMES,
        last_speech_timestamp=27.5,
    )
    found = [
        {
            "start": one["start"],
            "end": one["end"],
            "words": [
                [word["word"], word["start"], word["end"], round(float(word["probability"]), 9)]
                for word in one["words"]
            ],
        }
        for one in segments
    ]
    made = {"language": language, "tokens": tokens, "split": split, "segments": found}
    return made, known


def main() -> None:
    vocabulary: dict[int, str] = {}
    special: dict[str, int] = {}
    made = []
    for seed, (language, text) in enumerate(TEXTS.items()):
        one, known = case(seed, language, text)
        made.append(one)
        for token in one["tokens"]:
            vocabulary[token] = known.encoding.decode_single_token_bytes(token).hex()
        special = dict(known.special_tokens)
    # Times, but the first one, are not needed.
    special = {name: token for name, token in special.items() if token <= known.timestamp_begin}
    english = [f"{name}.en" for name in ("tiny", "base", "small", "medium")]
    written = {
        "vocabulary": vocabulary,
        "special": special,
        "texts": made,
        "alignment": [alignment(name) for name in [*SIZES, *english]],
    }
    path = HERE / "speech" / "words.json"
    path.write_text(json.dumps(written, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
