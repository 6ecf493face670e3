"""Times DeBERTa-v3-base (random weights) on one GPU: Packhorse beside transformers, in float16.

    python benchmarks/gpu/deberta.py [--quick] [--out FILE.json]

transformers runs its own DeBERTa unchanged, in eager mode, on the padded batch. BERT-base on the
same batches shows what the relative terms cost. Prints Markdown and writes FILE.json (default:
benchmarks/results/). METHOD of encoders.py says how times are measured.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import packhorse
import torch
from batches import BASE, Workload, load_session, random_weights
from encoders import OURS, interleave, time_on_gpu
from results import result_of, table, write
from torch_encoders import Batch
from transformers import DebertaV2Config, DebertaV2Model

EAGER = "transformers, eager"
BERT = "BERT-base, Packhorse"
MAX_TOKENS, MAX_SEQUENCES = 8192, 64

CASES = (Workload(BASE, 16, 512, quick=True), Workload(BASE, 16, 128), Workload(BASE, 64, 256))


def make_model() -> Any:
    """Makes a model with the sizes of microsoft/deberta-v3-base, except that its vocabulary is
    BERT's."""
    torch.manual_seed(0)
    config = DebertaV2Config(
        vocab_size=30522,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        relative_attention=True,
        position_buckets=256,
        max_relative_positions=-1,
        max_position_embeddings=512,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
        layer_norm_eps=1e-7,
        initializer_range=0.04,  # not the original 0.02, so that attention is far from uniform
    )
    return DebertaV2Model(config).eval()


def measure(workload: Workload, session: Any, bert: Any, exact: Any, half: Any, rounds: int) -> Any:
    ids, cu_seqlens = workload.tokens()
    batch = Batch.make(ids, cu_seqlens)
    inputs = {"input_ids": batch.padded_ids, "attention_mask": batch.mask.long()}
    timers = {
        OURS: lambda n: session._native.time_encoder(ids, cu_seqlens, n),
        BERT: lambda n: bert._native.time_encoder(ids, cu_seqlens, n),
        EAGER: partial(time_on_gpu, lambda: half(**inputs)),
    }
    found = torch.from_numpy(session.run((ids, cu_seqlens)).hidden).cuda()
    expected = exact(**inputs).last_hidden_state[batch.mask]
    theirs = half(**inputs).last_hidden_state[batch.mask].float()
    samples = interleave(timers, rounds)
    times = {name: statistics.median(values) for name, values in samples.items()}
    return {
        "name": f"{workload.batch} x {workload.max_length}",
        "tokens": int(cu_seqlens[-1]),
        "padded_tokens": workload.batch * workload.max_length,
        "milliseconds": times,
        "spread": {name: statistics.quantiles(x, n=10)[::8] for name, x in samples.items()},
        "samples": {name: len(values) for name, values in samples.items()},
        "max_abs_error": {
            OURS: float((found - expected).abs().max()),
            EAGER: float((theirs - expected).abs().max()),
        },
    }


def markdown(rows: list[Any]) -> str:
    lines = []
    for row in rows:
        times, errors = row["milliseconds"], row["max_abs_error"]
        lines.append(
            [
                row["name"],
                str(row["tokens"]),
                f"{times[OURS]:.3f}",
                f"{times[EAGER]:.2f} ({times[EAGER] / times[OURS]:.1f})",
                f"{times[BERT]:.3f} ({times[OURS] / times[BERT]:.2f})",
                f"{errors[OURS]:.1e}",
                f"{errors[EAGER]:.1e}",
            ]
        )
    header = ["DeBERTa-v3-base", "tokens", f"{OURS}, ms", f"{EAGER}, ms (times slower)"]
    header += ["BERT-base, ms (DeBERTa / BERT)", "error", f"error of {EAGER}"]
    return table(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one workload, fewer samples")
    parser.add_argument("--out", type=Path, help="the result file")
    arguments = parser.parse_args()

    torch.set_grad_enabled(False)
    capacity: Any = {"max_tokens": MAX_TOKENS, "max_sequences": MAX_SEQUENCES}
    exact = make_model()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "deberta"
        exact.save_pretrained(folder)
        session = packhorse.Session.load(folder, "cuda:0", "float16", **capacity)
        bert = load_session(BASE, random_weights(BASE), Path(temporary) / "bert")
    exact = exact.cuda()
    half = make_model().half().cuda()
    chosen = [case for case in CASES if case.quick or not arguments.quick]
    rounds = 2 if arguments.quick else 5
    rows = [measure(case, session, bert, exact, half, rounds) for case in chosen]

    result = result_of(rows=rows)
    print(markdown(rows))
    write(result, "gpu_deberta", arguments.out)


if __name__ == "__main__":
    main()
