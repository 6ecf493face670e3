"""The operator that chooses tokens; `packhorse.ops.sample`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packhorse.ops.call import as_float32, shared_operators
from packhorse.packing import own_int32

_MOST_VOCAB_SIZE = 1 << 19
_MOST_TOP = 128
_SEEN = np.int32(-(2**31))


class Sampled(NamedTuple):
    """Tokens that `sample` has chosen from n rows of logits."""

    tokens: npt.NDArray[np.int32]
    """[n], -1 where no token was allowed."""
    logprobs: npt.NDArray[np.float32]
    """[n] log probabilities of `tokens` by the logits as they were given."""
    top_tokens: npt.NDArray[np.int32]
    """[n, top] the most likely tokens, falling."""
    top_logprobs: npt.NDArray[np.float32]
    """[n, top]"""


def _column(name: str, values: Any, rows: int, low: float, high: float) -> npt.NDArray[np.float32]:
    """One number for all rows, or one for each."""
    array = as_float32(name, values)
    if array.shape not in ((), (rows,)):
        raise ValueError(f"{name} has shape {array.shape}, expected one number or {rows}")
    bad = array[~((array >= low) & (array <= high))]
    if bad.size:
        raise ValueError(f"{name} is {bad.flat[0]}, expected {low:g} to {high:g}")
    return np.broadcast_to(array, (rows,))


def _integers(name: str, values: Any, rows: int) -> npt.NDArray[np.uint64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.shape not in ((), (rows,)):
        raise ValueError(f"{name}: expected one integer or {rows}")
    if (array < 0).any():
        raise ValueError(f"{name} is {array.min()}, expected 0 to 2^64 - 1")
    return np.broadcast_to(array.astype(np.uint64), (rows,))


def _tokens(name: str, ids: Any, vocab_size: int) -> npt.NDArray[np.int32]:
    array = own_int32(name, ids)
    if array.size and (array.min() < 0 or array.max() >= vocab_size):
        raise ValueError(f"{name} has a token outside of 0 to {vocab_size - 1}")
    return array


def _counts(
    rows: int,
    vocab_size: int,
    prompts: Sequence[Any] | None,
    generated: Sequence[Any] | None,
) -> npt.NDArray[np.int32] | None:
    if prompts is None and generated is None:
        return None
    counts = np.zeros((rows, vocab_size), np.int32)
    for name, lists in (("generated", generated), ("prompts", prompts)):
        if lists is None:
            continue
        if len(lists) != rows:
            raise ValueError(f"{name} has {len(lists)} rows, logits has {rows}")
        for row, ids in zip(counts, lists, strict=True):
            tokens = _tokens(name, ids, vocab_size)
            if name == "generated":
                np.add.at(row, tokens, 1)
            else:
                row[tokens] |= _SEEN
    return counts


def sample(
    logits: Any,
    *,
    temperature: Any = 0.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    repetition_penalty: Any = 1.0,
    presence_penalty: Any = 0.0,
    frequency_penalty: Any = 0.0,
    prompts: Sequence[Any] | None = None,
    generated: Sequence[Any] | None = None,
    logit_bias: Sequence[Mapping[int, float]] | None = None,
    boost: Sequence[Mapping[int, float]] | None = None,
    flat: bool = False,
    allowed: Any = None,
    seed: Any = 0,
    stream: Any = 0,
    draw: Any = 0,
    top: int = 0,
    beam: bool = False,
    device: str = "cpu",
    threads: int | None = None,
) -> Sampled:
    """One token for each row of logits [n, vocab_size], by settings that are numbers for all rows
    or [n].

    In this order: logit_bias, one mapping of tokens for each row, is added; the penalties act on
    the tokens of `prompts` and `generated`, lists of ids for each row; with `flat` all logits
    become 0; boost, one mapping of tokens for each row, raises a logit l by boost * |l|; tokens
    outside of `allowed`, bool [n, vocab_size], are left out. Temperature 0 takes the largest
    logit, the lowest token where several are largest. Else logits are divided by it, top_k, then
    top_p, then min_p keep the most likely tokens, and one of these is drawn: the numbers `seed`,
    `stream` and `draw` decide which, by Philox4x32-10, so that equal numbers give equal draws.

    The `top` most likely tokens, at most 128, are told by the logits as given. With `beam` no
    token is chosen, and they are told by the log probabilities after bias, penalties and mask.

    Raises ValueError where arguments do not fit together or are out of range.
    """
    array = as_float32("logits", logits)
    if array.ndim != 2 or not 1 <= array.shape[1] <= _MOST_VOCAB_SIZE:
        raise ValueError(
            f"logits has shape {array.shape}, expected [n, 1 to {_MOST_VOCAB_SIZE} tokens]"
        )
    rows, vocab_size = array.shape
    if not 0 <= top <= _MOST_TOP:
        raise ValueError(f"top is {top}, expected 0 to {_MOST_TOP}")
    tiny = float(np.finfo(np.float32).tiny)
    huge = float(np.finfo(np.float32).max)
    floats = [
        _column("temperature", temperature, rows, 0, huge),
        _column("top_p", top_p, rows, tiny, 1),
        _column("min_p", min_p, rows, 0, 1),
        _column("repetition_penalty", repetition_penalty, rows, tiny, huge),
        _column("presence_penalty", presence_penalty, rows, -huge, huge),
        _column("frequency_penalty", frequency_penalty, rows, -huge, huge),
    ]
    ints = [
        np.minimum(_integers("top_k", top_k, rows), np.uint64(2**31 - 1)).astype(np.int32),
        np.full(rows, beam, np.int32),
        np.full(rows, flat, np.int32),
    ]
    draws = [_integers(n, v, rows) for n, v in (("seed", seed), ("stream", stream), ("draw", draw))]
    # The biases of each row, then its boosts.
    biases: list[Mapping[int, float]] = [{}] * (2 * rows)
    for i, (name, given) in enumerate((("logit_bias", logit_bias), ("boost", boost))):
        if given is None:
            continue
        if len(given) != rows:
            raise ValueError(f"{name} has {len(given)} rows, logits has {rows}")
        _tokens(name, [token for row in given for token in row], vocab_size)
        biases[i::2] = given
    bias_tokens = np.array([token for row in biases for token in row], np.int32)
    bias_values = as_float32("logit_bias or boost", [v for row in biases for v in row.values()])
    masks = None
    if allowed is not None:
        allowed = np.asarray(allowed)
        if allowed.dtype != np.bool_ or allowed.shape != array.shape:
            raise ValueError(
                f"allowed is {allowed.dtype}{list(allowed.shape)}, expected bool{list(array.shape)}"
            )
        padded = np.zeros((rows, (vocab_size + 31) // 32 * 32), np.bool_)
        padded[:, :vocab_size] = allowed
        masks = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    tokens, logprobs, top_tokens, top_logprobs = shared_operators(
        device, "float32" if device == "cpu" else "float16", threads
    ).sample(
        array,
        np.ascontiguousarray(np.stack(floats, 1)),
        np.ascontiguousarray(np.stack(ints, 1)),
        np.ascontiguousarray(np.stack(draws, 1)),
        np.cumsum([len(row) for row in biases], dtype=np.int32).reshape(rows, 2),
        bias_tokens,
        bias_values,
        masks,
        _counts(rows, vocab_size, prompts, generated),
        top,
    )
    return Sampled(tokens[:, 0], logprobs[:, 0], top_tokens, top_logprobs)
