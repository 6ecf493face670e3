"""DeBERTa: attention with disentangled terms, and models that have it or a convolution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_encoder
import torch
from cases import BATCHES, mixed_lengths, offsets
from gpu_support import DEVICE, Precision, attention, to_host
from models import SPEC_OPTIONS, random_sequences, random_tensors, tiny_spec, write_model
from packhorse import Session, ops
from test_gpu_models import as_seen, check_hidden
from torch import Generator

pytestmark = pytest.mark.usefixtures("kernels")

Lengths = list[int]
# (buckets, max_distance): those of DeBERTa-v3, some with few buckets, and 0 buckets, which means
# one slot for each distance.
DISTANCES = [(256, 512), (4, 4), (32, 90), (0, 512), (0, 7)]
BOTH = ("position_keys", "position_queries")
LENGTHS: dict[str, Lengths] = {
    **BATCHES,
    "tile-edges": [15, 16, 17, 127, 128, 129, 191, 192, 193],
    "many": mixed_lengths(40, 600),
    "long": [2050, 1, 0, 777],
}


def tables(
    precision: Precision,
    random: Generator,
    columns: int,
    buckets: int,
    max_distance: int,
    terms: tuple[str, ...] = BOTH,
) -> dict[str, Any]:
    slots = 2 * (buckets or max_distance)
    named = {name: precision.normal(random, slots, columns) for name in terms}
    return {**named, "buckets": buckets, "max_distance": max_distance}


def on_host(options: dict[str, Any]) -> dict[str, Any]:
    return {name: to_host(x) if torch.is_tensor(x) else x for name, x in options.items()}


def check(
    precision: Precision,
    random: Generator,
    q_lengths: Lengths,
    kv_lengths: Lengths | None = None,
    head_dim: int = 64,
    distances: tuple[int, int] = (256, 512),
    terms: tuple[str, ...] = BOTH,
    heads: int = 2,
    **options: Any,
) -> None:
    cu_q = offsets(q_lengths)
    cu_k = cu_q if kv_lengths is None else offsets(kv_lengths)
    columns = heads * head_dim
    q = precision.normal(random, int(cu_q[-1]), columns)
    k, v = (precision.normal(random, int(cu_k[-1]), columns) for _ in range(2))
    options |= tables(precision, random, columns, *distances, terms)
    options["scale"] = ((1 + len(terms)) * head_dim) ** -0.5
    actual = ops.attention(
        to_host(q),
        to_host(k),
        to_host(v),
        cu_q,
        cu_k,
        num_heads=heads,
        **on_host(options),
        **precision.options(),
    )
    expected = attention(q, k, v, cu_q.tolist(), cu_k.tolist(), heads, heads, **options)
    # The disentangled terms, the probabilities and the result are rounded.
    precision.check(actual, expected, steps=2)


@pytest.mark.parametrize("terms", [BOTH, BOTH[:1], BOTH[1:]])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_batches(
    precision: Precision, random: Generator, lengths: Lengths, terms: tuple[str, ...]
) -> None:
    for head_dim in (32, 64, 128):
        check(precision, random, lengths, head_dim=head_dim, terms=terms)


@pytest.mark.parametrize("distances", DISTANCES)
@pytest.mark.parametrize("head_dim", [16, 64, 80])
def test_distances(
    precision: Precision, random: Generator, distances: tuple[int, int], head_dim: int
) -> None:
    check(precision, random, [5, 70, 1, 0, 700], head_dim=head_dim, distances=distances)


@pytest.mark.parametrize("head_dim", range(8, 129, 8))
def test_head_sizes(precision: Precision, random: Generator, head_dim: int) -> None:
    check(precision, random, [5, 70, 1, 0, 129, 300], head_dim=head_dim)


@pytest.mark.parametrize("options", [{"causal": True}, {"window": (40, 100)}, {"window": (0, 0)}])
def test_masks(precision: Precision, random: Generator, options: dict[str, Any]) -> None:
    check(precision, random, [130, 1, 0, 400], **options)
    check(precision, random, [3, 1, 0, 150, 10], [300, 1, 7, 170, 4], **options)


def test_bits_do_not_depend_on_the_batch(precision: Precision, random: Generator) -> None:
    lengths = [1, 64, 128, 129, 300, 1030]
    company = [*mixed_lengths(30, 200), 1500]
    columns = 2 * 64
    rows = {
        length: [to_host(precision.normal(random, length, columns)) for _ in "qkv"]
        for length in {*lengths, *company}
    }
    options = on_host(tables(precision, random, columns, 256, 512)) | precision.options()

    def run(batch: Lengths) -> list[bytes]:
        q, k, v = (np.concatenate([rows[length][i] for length in batch]) for i in range(3))
        cu_seqlens = offsets(batch)
        out = ops.attention(q, k, v, cu_seqlens, num_heads=2, **options)
        return [part.tobytes() for part in np.split(out, cu_seqlens[1:-1])]

    alone = {length: run([length])[0] for length in lengths}
    for batch in (lengths, [*company, *lengths], [*lengths[::-1], *company] * 2):
        for length, found in zip(batch, run(batch), strict=True):
            assert found == alone.get(length, found), (length, len(batch))


def test_neighbours_do_not_leak(precision: Precision, random: Generator) -> None:
    lengths = [5, 130, 70, 1, 300]
    cu_seqlens = offsets(lengths)
    shape = (int(cu_seqlens[-1]), 128)
    q, k, v = (to_host(precision.normal(random, *shape)) for _ in "qkv")
    options = on_host(tables(precision, random, 128, 256, 512)) | precision.options()
    clean = ops.attention(q, k, v, cu_seqlens, num_heads=2, **options)
    for b in range(len(lengths)):
        own = np.zeros(len(clean), bool)
        own[cu_seqlens[b] : cu_seqlens[b + 1]] = True
        bad = [np.where(own[:, None], np.nan, x) for x in (q, k, v)]
        actual = ops.attention(*bad, cu_seqlens, num_heads=2, **options)
        assert actual[~own].tobytes() == clean[~own].tobytes(), b
        assert not np.isfinite(actual[own]).any()


def test_sizes_that_do_not_suit(precision: Precision, random: Generator) -> None:
    rows = np.ones((4, 136))
    options = on_host(tables(precision, random, 136, 256, 512)) | precision.options()
    with pytest.raises(ValueError, match="head_dim 136 is over 128, the most with a disentangled"):
        ops.attention(rows, rows, rows, [0, 4], num_heads=1, **options)
    options["position_keys"] = np.ones((511, 136))
    with pytest.raises(ValueError, match="position_keys has 511 rows, expected 512"):
        ops.attention(rows, rows, rows, [0, 4], num_heads=1, **options)


MODELS = [
    "disentangled",
    "disentangled-of-each-distance",
    "content-to-position-alone",
    "position-to-content-alone",
    "convolution",
    "wide-convolution",
]


@pytest.mark.parametrize("name", MODELS)
def test_models(precision: Precision, name: str, tmp_path: Path) -> None:
    spec = tiny_spec(**SPEC_OPTIONS[name])
    tensors = random_tensors(spec)
    session = Session.load(
        write_model(tmp_path, spec, tensors), DEVICE, precision.name, max_tokens=512
    )
    seen = as_seen(tensors, precision)
    if "convolution" in spec:
        weight = precision.round(tensors["convolution.weight"])
        seen["convolution.weight"] = weight.cpu().numpy()
    for lengths in ([2, 130, 0, 1, 40], [1] * 9, [300], [0, 0], []):
        ids = np.concatenate([np.zeros(0, np.int32), *random_sequences(lengths)])
        cu_seqlens = offsets(lengths)
        found = session.run((ids, cu_seqlens)).hidden
        expected = reference_encoder.encoder(spec, seen, ids, cu_seqlens)
        check_hidden(found, expected, precision)
