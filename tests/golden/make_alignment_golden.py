"""Weights of cross attention of the golden models with an encoder and a decoder, by transformers in
float32: of each, the first source and target of golden.npz.

    python tests/golden/make_alignment_golden.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSeq2SeqLM

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "text_to_text"
NUMBER = 0  # index of the source and its target


def weights(name: str) -> np.ndarray:
    """[layers, heads, tokens of the target, tokens of the source]"""
    golden = np.load(FOLDER / name / "golden.npz")

    def row(ids: str, ends: str) -> torch.Tensor:
        begin, end = golden[ends][NUMBER : NUMBER + 2]
        return torch.as_tensor(golden[ids][begin:end][None]).long()

    model = AutoModelForSeq2SeqLM.from_pretrained(
        FOLDER / name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        found = model(
            input_ids=row("ids", "cu_seqlens"),
            decoder_input_ids=row("target_ids", "target_cu"),
            output_attentions=True,
        )
    return torch.cat(found.cross_attentions).numpy().astype(np.float32)


def main() -> None:
    names = sorted(path.name for path in FOLDER.iterdir())
    np.savez_compressed(HERE / "alignment.npz", **{name: weights(name) for name in names})


if __name__ == "__main__":
    main()
