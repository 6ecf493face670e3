"""A spec whose numbers were changed plans and loads, or is refused: it never ends the process, and
takes neither gigabytes nor a long time."""

from __future__ import annotations

import copy
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import packhorse
import pytest
from models import HEAD_OPTIONS, SPEC_OPTIONS, Spec, tiny_spec, with_defaults, write_model
from packhorse import Sampling, Session
from packhorse_weights.spec import upgraded

_NUMBERS = (0, -1, 1, 2**12, 2**24, 2**31 - 1, 2**63 - 1, 1e-300)
_LISTS: tuple[list[Any], ...] = ([], [0] * 5000, [2**31], [1e300])

_DECODER: Spec = {
    "num_kv_heads": 2,
    "norm": {"kind": "rms", "placement": "pre", "eps": 1e-6, "gamma_offset": 0.5},
    "attention": {"mask": "causal", "rope": {"theta": 1000.0}},
    "heads": {"lm": {"tied": True, "scale": 0.5, "soft_cap": 3.0}},
}
_GENERATORS: dict[str, Spec] = {
    "decoder": _DECODER,
    "windows-and-caps": {
        **_DECODER,
        "attention": {
            "mask": "causal",
            "scale": 0.3,
            "soft_cap": 20.0,
            "local": {"window": 3, "layers": [0]},
            "rope": {"theta": 1000.0, "dims": 6, "factor": 2.0, "local_theta": 10.0},
        },
    },
    "mixture": {
        **_DECODER,
        "ffn": {"kind": "mixture", "experts": 3, "router_size": 16, "activation": "silu"},
    },
    "compressed-decoder": {
        **_DECODER,
        "attention": SPEC_OPTIONS["compressed-and-causal"]["attention"],
    },
    "quantised": {
        **_DECODER,
        "hidden_size": 64,
        "quantized": [
            {"layers": ["layers.0.attention.output"], "bits": 8, "group": 32, "minima": False}
        ],
    },
}
_ENCODERS = {
    name: {**SPEC_OPTIONS, **HEAD_OPTIONS}[name]
    for name in (
        "positions-after-a-projection",
        "shared-layers",
        "rope-of-given-frequencies",
        "disentangled",
        "wide-convolution",
        "buckets",
        "masked-lm",
        "sparse-sum-of-logs-of-logs",
        "vectors-of-layers",
    )
}


def changes_of(value: Any) -> Iterator[Any]:
    """Copies of a spec, each with one number, or one list, replaced."""
    if isinstance(value, dict):
        for name, field in value.items():
            for changed in changes_of(field):
                yield {**value, name: changed}
    elif isinstance(value, list):
        yield from _LISTS
        for i, item in enumerate(value):
            for changed in changes_of(item):
                yield [*value[:i], changed, *value[i + 1 :]]
    elif not isinstance(value, (bool, str)):
        yield from (number for number in _NUMBERS if number != value)


@pytest.mark.parametrize("format", [1, 2])
@pytest.mark.parametrize("name", [*_ENCODERS, *_GENERATORS])
def test_changed_numbers(name: str, format: int, tmp_path: Path) -> None:
    generates = name in _GENERATORS
    spec = with_defaults(tiny_spec(**(_GENERATORS | _ENCODERS)[name]))
    if format == 2:
        spec = upgraded(spec)
    spec.setdefault("max_seqlen", 290)
    folder = write_model(tmp_path, spec, None if name != "quantised" else {})
    sizes: dict[str, Any] = {"max_tokens": 64, "max_sequences": 4, "kv_tokens": 64 * generates}
    if not generates and {"lm", "masked_lm"} & set(spec["heads"]):
        sizes["max_predictions"] = 4
    refused = loaded = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for changed in changes_of(copy.deepcopy(spec)):
        start = time.perf_counter()
        try:
            packhorse.plan_memory(changed, "cpu", threads=1, **sizes)
            (folder / "packhorse.json").write_text(json.dumps(changed))
            session = Session.load(folder, "cpu", threads=1, memory_limit=1 << 27, **sizes)
            if generates:
                session.generate([[1]], Sampling(max_new_tokens=2))
            else:
                session.run([[1]])
            session.close()
            loaded += 1
        except (ValueError, MemoryError):
            refused += 1
        assert time.perf_counter() - start < 5, changed
    assert refused > 50
    assert loaded > 5 or name == "quantised"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 500_000, f"{grown} KB"


def test_a_model_that_generates_has_layers(tmp_path: Path) -> None:
    spec = with_defaults(tiny_spec(**_DECODER, num_layers=0))
    message = "spec: there are no layers: a model that generates needs one at least"
    with pytest.raises(ValueError, match=message):
        packhorse.plan_memory(spec, "cpu", kv_tokens=64)
    with pytest.raises(ValueError, match=message):
        Session.load(write_model(tmp_path, spec), "cpu", kv_tokens=64)


def test_sizes_that_overflow_together() -> None:
    """Each size is allowed, their product is beyond the address space."""
    spec = with_defaults(tiny_spec(**_DECODER))
    spec.update(num_heads=4096, num_kv_heads=4096, head_dim=4096, num_layers=4096)
    spec["layer_weights"] = [0] * 4096
    for limit in (None, 1 << 40):
        with pytest.raises(MemoryError, match="exceeds the address space"):
            packhorse.plan_memory(spec, "cpu", kv_tokens=1 << 40, memory_limit=limit)
    mixture = tiny_spec(**_GENERATORS["mixture"], num_layers=4096)
    mixture["ffn"]["experts"] = 1024
    with pytest.raises(ValueError, match="'ffn.experts' is 1024 in each of 4096 layers"):
        packhorse.plan_memory(mixture, "cpu")
