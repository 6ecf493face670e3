"""Makes speech/whisper: a tiny random model of speech with its tokenizer, and what transformers
makes of it; and speech/log_mel.npz, frames of its feature extractor.

    pip install torch transformers tokenizers      (made with torch 2.13.0, transformers 5.13.0)
    python tests/golden/make_speech_golden.py

golden.npz beside the model holds, for windows of random frames that were each run alone in float32:

    frames                   [windows, frames, mels]
    target_ids, target_cu    decoder inputs
    logits                   [sum of targets, vocabulary] after each of these
    hidden                   [windows, positions, hidden] of the encoder
    greedy, greedy_cu        the NEW most probable tokens, one after the other

log_mel.npz holds frames [frames, mels] of `samples(name)` below, by the extractor's window of as
many samples.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from make_golden import randomise
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).parent / "speech"
NEW, MELS, POSITIONS = 15, 6, 50
TARGETS = (4, 1, 20)
LANGUAGES = ("en", "de", "fr")
NAMED = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)


def samples(name: str) -> np.ndarray:
    """Sweeps, noise and silence, float32 at 16 kHz."""
    random = np.random.default_rng(5)
    time = np.arange(16000 * 3) / 16000
    sweep = 0.4 * np.sin(2 * np.pi * (80 + 1200 * time) * time)
    if name == "noise":
        return random.normal(0, 0.1, 7999).astype(np.float32)
    if name == "quiet":
        return np.where(time < 1, sweep * 1e-4, 0).astype(np.float32)
    return (sweep + random.normal(0, 0.001, time.size)).astype(np.float32)


def tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in NAMED])
    times = [f"<|{0.02 * i:.2f}|>" for i in range(POSITIONS + 1)]
    made.add_tokens([AddedToken(name, normalized=False) for name in times])
    return made


@torch.no_grad()
def make_model() -> None:
    random = np.random.default_rng(2026)
    made = tokenizer()
    folder = HERE / "whisper"
    folder.mkdir(parents=True, exist_ok=True)
    end = made.token_to_id("<|endoftext|>")
    config = transformers.WhisperConfig(
        vocab_size=made.get_vocab_size(),
        num_mel_bins=MELS,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=40,
        max_source_positions=POSITIONS,
        max_target_positions=60,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=end + 1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    config._attn_implementation = "eager"
    model = transformers.WhisperForConditionalGeneration(config).eval()
    randomise(model)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(
        json.dumps(
            {
                "eos_token_id": end,
                "decoder_start_token_id": end + 1,
                "is_multilingual": True,
                "alignment_heads": [[0, 1], [1, 0], [1, 3]],
            }
        )
        + "\n"
    )
    made.save(str(folder / "tokenizer.json"))
    frames = random.normal(0, 1, (len(TARGETS), 2 * POSITIONS, MELS)).astype(np.float32)
    targets = [random.integers(0, made.get_vocab_size(), n) for n in TARGETS]
    logits, greedy, hidden = [], [], []
    for window, target in zip(frames, targets, strict=True):
        heard = torch.tensor(window.T.copy())[None]
        hidden.append(model.model.encoder(heard).last_hidden_state[0])
        ids = torch.tensor(target)[None]
        logits.append(model(heard, decoder_input_ids=ids).logits[0])
        said: list[int] = []
        for _ in range(NEW):
            best = int(model(heard, decoder_input_ids=ids).logits[0, -1].argmax())
            said.append(best)
            ids = torch.cat([ids, torch.tensor([[best]])], dim=1)
        greedy.append(said)
    np.savez_compressed(
        folder / "golden.npz",
        frames=frames,
        target_ids=np.concatenate(targets).astype(np.int32),
        target_cu=np.cumsum([0, *TARGETS]).astype(np.int32),
        logits=torch.cat(logits).numpy(),
        hidden=torch.stack(hidden).numpy(),
        greedy=np.concatenate(greedy).astype(np.int32),
        greedy_cu=np.arange(len(TARGETS) + 1, dtype=np.int32) * NEW,
    )
    print(sum(file.stat().st_size for file in folder.rglob("*")), "bytes", greedy[0])


def make_log_mel() -> None:
    arrays = {}
    for name in ("sweep", "noise", "quiet"):
        for mels in (80, 128):
            heard = samples(name)
            extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
            found = extractor._np_extract_fbank_features([heard.astype(np.float64)], "cpu")[0]
            # Every fifth frame, which keeps the file small.
            arrays[f"{name}_{mels}"] = found.T[::5].astype(np.float32)
    np.savez_compressed(HERE / "log_mel.npz", **arrays)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    HERE.mkdir(exist_ok=True)
    make_model()
    make_log_mel()
