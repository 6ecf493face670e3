"""Golden models with an encoder and a decoder: what transformers makes of them, and texts for which
sessions give the same bits whatever else they run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
from checkpoints import GOLDEN
from packhorse import GenerationSession

Ids = npt.NDArray[np.int32]
FOLDER = GOLDEN / "text_to_text"
ADAPTERS = GOLDEN / "text_to_text_adapters"  # adapters of the models of the same names
NAMES = sorted(path.name for path in FOLDER.iterdir())
# Ways to choose tokens.
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"max_new_tokens": 25, "ignore_eos": True},
    "beams": {"max_new_tokens": 20, "num_beams": 4},
    "several": {"max_new_tokens": 25, "temperature": 1.0, "seed": 3, "n": 3},
}


class Golden:
    """Outputs of transformers, for each source alone."""

    def __init__(self, name: str) -> None:
        self._arrays = dict(np.load(FOLDER / name / "golden.npz"))
        self.sources = self.rows("ids", "cu_seqlens")
        self.targets = self.rows("target_ids", "target_cu")
        self.scores = self._arrays["beam_scores"]
        settings = json.loads((FOLDER / name / "generation_config.json").read_text())
        self.forced = settings.get("forced_bos_token_id")
        self.starts = [target[:1] for target in self.targets]

    def rows(self, name: str, ends: str) -> list[Any]:
        return np.split(self._arrays[name], self._arrays[ends][1:-1])


class AdapterGolden:
    """Outputs of PEFT with the adapter of a model, for each source alone."""

    def __init__(self, name: str) -> None:
        arrays = dict(np.load(ADAPTERS / name / "golden.npz"))
        self.sources = np.split(arrays["ids"], arrays["cu_seqlens"][1:-1])
        self.targets = np.split(arrays["target_ids"], arrays["target_cu"][1:-1])
        self.starts = [target[:1] for target in self.targets]
        self.logits = arrays["logits"]
        self.bfloat16_error = float(arrays["bfloat16_error"])
        self.greedy = arrays["greedy"].tolist()


def log_softmax(logits: Any) -> Any:
    largest = logits.max(-1, keepdims=True)
    return logits - largest - np.log(np.exp(logits - largest).sum(-1, keepdims=True))


def log_probabilities(found: Any, count: int) -> Any:
    """Those of all `count` tokens, after each token of a prompt, of a result that tells them."""
    rows = [*found.prompt_logprobs.top, *found.top_logprobs]
    return np.array([[dict(row)[i] for i in range(count)] for row in rows])


def random_texts(session: GenerationSession) -> tuple[list[Ids], list[Ids]]:
    """Sources and prompts of very uneven lengths."""
    rng = np.random.default_rng(7)
    longest = min(session.max_source_tokens, 300)

    def ids(lengths: list[int]) -> list[Ids]:
        return [rng.integers(3, session.vocab_size - 2, n).astype(np.int32) for n in lengths]

    return ids([1, 2, longest, 63, 64, 5, longest - 3, 17, 66]), ids([1, 3, 1, 1, 40, 1, 2, 1, 1])


def outcome(result: Any) -> Any:
    if isinstance(result, list):
        return [outcome(one) for one in result]
    return result.ids, result.logprobs, result.score
