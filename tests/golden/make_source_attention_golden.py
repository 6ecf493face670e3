"""Makes source_attention.npz: cross attention of texts of beam search, by transformers in float32.

    pip install torch transformers      (made with torch 2.13.0, transformers 5.13.0)
    python tests/golden/make_source_attention_golden.py

The models are those of `text_to_text_models.make_folder`. Of each, for each of TEXTS:

    NAME/i/source        its tokens
    NAME/i/beams         [RETURNED, tokens] the best hypotheses of BEAMS beams, filled up with -1
    NAME/i/attention     [RETURNED, layers, tokens, tokens of the source] means of all heads, of the
                         steps and beams that each token of a hypothesis comes from
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packhorse.text import TextModel
from transformers import AutoModelForSeq2SeqLM

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "python" / "support"))
from text_to_text_models import SETTINGS, make_folder  # noqa: E402

NAMES = ("marian", "t5", "mbart")
TEXTS = ("the cat sat on the mat", "", "The Quick brown fox jumps over the lazy dog.")
BEAMS, RETURNED = 4, 2


@torch.inference_mode()
def attended(model: Any, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(hypotheses, their attention)"""
    made = model.generate(
        input_ids=torch.as_tensor(source[None]).long(),
        num_beams=BEAMS,
        num_return_sequences=RETURNED,
        do_sample=False,
        output_attentions=True,
        output_scores=True,  # without these it forgets which beam a token comes from
        return_dict_in_generate=True,
        **SETTINGS,
    )
    ids = made.sequences[:, 1:].numpy()
    from_beam = made.beam_indices.numpy()  # [RETURNED, tokens], -1 behind the end
    beams = np.where(from_beam >= 0, ids, -1)
    layers = len(made.cross_attentions[0])
    weights = np.zeros((RETURNED, layers, beams.shape[1], source.size), np.float32)
    for row, column in np.argwhere(from_beam >= 0):
        for layer in range(layers):
            step = made.cross_attentions[column][layer]  # [beams, heads, 1, tokens of the source]
            weights[row, layer, column] = step[from_beam[row, column], :, -1].mean(0).numpy()
    return beams.astype(np.int32), weights


def main() -> None:
    torch.set_num_threads(1)
    arrays = {}
    for name in NAMES:
        with tempfile.TemporaryDirectory() as room:
            folder = make_folder(Path(room) / name, name)
            model = AutoModelForSeq2SeqLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            ).eval()
            with TextModel.load(folder, kv_tokens=1024) as own:
                assert own._generation is not None
                sources = [own._generation.prompt_ids(text, 0) for text in TEXTS]
            for i, source in enumerate(sources):
                beams, weights = attended(model, source)
                for key, value in (("source", source), ("beams", beams), ("attention", weights)):
                    arrays[f"{name}/{i}/{key}"] = value
                print(name, source.size, beams.tolist())
    np.savez_compressed(HERE / "source_attention.npz", **arrays)


if __name__ == "__main__":
    main()
