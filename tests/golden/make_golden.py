"""Makes the golden models and outputs of this folder with transformers.

    pip install torch transformers sentence-transformers
                                                    (made with torch 2.13.0, transformers 5.23.0
                                                    and sentence-transformers 6.2.0)
    python tests/golden/make_golden.py              the tiny random models
    python tests/golden/make_golden.py NAME ...     those of these names only
    python tests/golden/make_golden.py --minilm FOLDER
                                                    minilm.npz, from the folder of all-MiniLM-L6-v2

Each tiny model is a folder as users have them, with golden.npz beside it:

    ids, type_ids, cu_seqlens   the packed batch (type_ids all zero where the model has none)
    hidden                      [T, hidden_size] last_hidden_state
    pooled                      [B, hidden_size] pooler_output, where the files hold a pooler
    embedding                   [B, hidden_size] as the folder's pooling files say
    logits                      [B, num_labels], or [T, num_labels] of models that label tokens
    prediction_rows, predictions  numbers of tokens, and what a masked language model says of them
    sparse, vectors, token_weights  as docs/models.md says, of models that have them
    last_logits                 [B, vocab_size] of a causal language model, after the last token

Every sequence was run alone, so without padding, in float32 with eager attention. The weights are
larger than a trained model's, the norms far from identity: so a wrong activation, position, type,
scale or tensor shows.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from golden_cases import DEFAULTS, DEFAULTS_OF, LATER_MODELS, MODELS, RENAMED, Case
from golden_heads import MODELS_WITH_HEADS
from golden_parts import add_parts
from torch import nn

HERE = Path(__file__).parent
NAMES = {  # a pooling mode of ours -> its flag in sentence-transformers' Pooling config
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt": "pooling_mode_mean_sqrt_len_tokens",
    "last": "pooling_mode_lasttoken",
}
HEADS = {
    "sequence": transformers.AutoModelForSequenceClassification,
    "tokens": transformers.AutoModelForTokenClassification,
    "answers": transformers.AutoModelForQuestionAnswering,
    "choice": transformers.AutoModelForMultipleChoice,
    "next": transformers.AutoModelForNextSentencePrediction,
}


# Linear layers whose outputs meet in a score.
QUERIES_AND_KEYS = (  # layers of positions included
    "query_proj",
    "key_proj",
    "query",
    "key",
    "q_lin",
    "k_lin",
    "attn.q",
    "attn.k",
    "q_proj",
    "k_proj",
    "SelfAttention.q",
    "SelfAttention.k",
    "EncDecAttention.q",
    "EncDecAttention.k",
)


def randomise(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(2026)

    def normal(parameter: torch.Tensor, std: float, mean: float = 0.0) -> None:
        values = torch.randn(parameter.shape, generator=generator) * std + mean
        parameter.data.copy_(values)

    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d):
            normal(module.weight, (module.in_channels * module.kernel_size[0]) ** -0.5)
            normal(module.bias, 0.3)
        elif isinstance(module, nn.Linear):
            gain = 2.0 if name.endswith(QUERIES_AND_KEYS) else 1.2
            normal(module.weight, gain / module.in_features**0.5)
            if module.bias is not None:
                normal(module.bias, 0.3)
        elif hasattr(module, "q_bias"):  # DeBERTa's, which no layer holds
            normal(module.q_bias, 0.3)
            normal(module.v_bias, 0.3)
        elif isinstance(module, nn.Embedding):
            normal(module.weight, 0.7)
        elif isinstance(module, nn.LayerNorm) or type(module).__name__.endswith(
            ("RMSNorm", "T5LayerNorm")
        ):
            normal(module.weight, 0.3, mean=1.0)
            if getattr(module, "bias", None) is not None:
                normal(module.bias, 0.3)


def pool(hidden: torch.Tensor, mode: str, normalize: bool) -> torch.Tensor:
    """hidden [n, E] of one sequence -> [E], as sentence-transformers computes it."""
    vector = {
        "cls": lambda: hidden[0],
        "mean": lambda: hidden.mean(0),
        "max": lambda: hidden.max(0).values,
        "mean_sqrt": lambda: hidden.sum(0) / len(hidden) ** 0.5,
        "last": lambda: hidden[-1],
    }[mode]()
    return nn.functional.normalize(vector, dim=0) if normalize else vector


@torch.no_grad()
def run(
    encoder: nn.Module,
    sequences: Iterable[tuple[np.ndarray, np.ndarray]],
    pooler: bool,
    mode: str,
    normalize: bool,
    model: nn.Module | None = None,
) -> dict[str, np.ndarray]:
    """Runs each (ids, type_ids) alone; the arrays of golden.npz. `model`: with a head."""
    ids, types, hidden, pooled, embedding, logits = [], [], [], [], [], []
    has_types = "token_type_ids" in inspect.signature(encoder.forward).parameters
    for one_ids, one_types in sequences:
        inputs = {"input_ids": torch.tensor(one_ids)[None]}
        if has_types:
            inputs["token_type_ids"] = torch.tensor(one_types)[None]
        output = encoder(**inputs)
        ids.append(one_ids)
        types.append(one_types)
        hidden.append(output.last_hidden_state[0])
        embedding.append(pool(hidden[-1], mode, normalize))
        if pooler:
            pooled.append(output.pooler_output[0])
        if model is not None:
            if type(model).__name__.endswith("ForMultipleChoice"):
                inputs = {name: value[:, None] for name, value in inputs.items()}
            output = model(**inputs)
            if "start_logits" in output:
                logits.append(torch.stack([output.start_logits[0], output.end_logits[0]], 1))
            else:  # [1, num_labels] or [1, n, num_labels]
                logits.append(output.logits.reshape(-1, output.logits.shape[-1]))
    lengths = [0, *(len(one) for one in ids)]
    arrays = {
        "ids": np.concatenate(ids).astype(np.int32),
        "type_ids": np.concatenate(types).astype(np.int32),
        "cu_seqlens": np.cumsum(lengths).astype(np.int32),
        "hidden": torch.cat(hidden).numpy(),
        "embedding": torch.stack(embedding).numpy(),
    }
    if pooler:
        arrays["pooled"] = torch.stack(pooled).numpy()
    if logits:
        arrays["logits"] = torch.cat(logits).numpy()
    return arrays


def write_pooling(folder: Path, case: Case) -> None:
    if case.pooling is None:
        return
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * case.normalize
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": paths[i],
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    config: dict[str, Any] = {"pooling_mode": case.pooling}
    if not case.pooling_as_text:
        config = {flag: mode == case.pooling for mode, flag in NAMES.items()}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config, indent=2))


def save(folder: Path, case: Case, model: nn.Module, encoder: nn.Module) -> None:
    if case.layout == "old_bin":
        # Names of the first BERT checkpoints: a prefix, a head, TensorFlow's names of a LayerNorm.
        state = {
            "bert."
            + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): value
            for name, value in encoder.state_dict().items()
        }
        state["cls.seq_relationship.weight"] = torch.zeros(2, 32)
        encoder.config.architectures = ["BertForPreTraining"]
        encoder.config.save_pretrained(folder)
        torch.save(state, folder / "pytorch_model.bin")
    elif case.head or case.layout in ("masked_lm", "causal_lm"):
        model.save_pretrained(folder)
    else:
        size = "60KB" if case.layout == "sharded" else "1GB"
        encoder.save_pretrained(folder, max_shard_size=size)


def config_of(case: Case) -> Any:
    renamed = RENAMED.get(case.model_type, set())
    fields = {name: value for name, value in DEFAULTS.items() if name not in renamed}
    config = transformers.AutoConfig.for_model(
        case.model_type, **fields | DEFAULTS_OF.get(case.model_type, {}) | case.config
    )
    config._attn_implementation = "eager"
    return config


def random_sequences(
    case: Case, random: np.random.Generator
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, type_ids) of each sequence; the second half is of type 1 where the model has two."""
    types = getattr(config_of(case), "type_vocab_size", 1)
    sequences = []
    for length in case.lengths:
        ids = random.integers(5, DEFAULTS["vocab_size"], length)  # 0 to 4: special tokens, padding
        one_types = (np.arange(length) >= length // 2) & (types == 2)
        sequences.append((ids, one_types.astype(np.int64)))
    return sequences


def make(case: Case, sequences: list[tuple[np.ndarray, np.ndarray]]) -> None:
    config = config_of(case)
    if case.head:
        model: Any = HEADS[case.head].from_config(config)
        encoder = model.base_model
        pooler = getattr(encoder, "pooler", None) is not None
    elif case.layout == "masked_lm":
        model = transformers.AutoModelForMaskedLM.from_config(config)
        encoder, pooler = model.base_model, False
    elif case.layout == "causal_lm":
        model = transformers.AutoModelForCausalLM.from_config(config)
        encoder, pooler = model.base_model, False
    elif case.layout == "encoder":
        model = transformers.AutoModelForTextEncoding.from_config(config)
        encoder, pooler = model, False
    else:
        options = {} if case.pooler is None else {"add_pooling_layer": case.pooler}
        model = transformers.AutoModel.from_config(config, **options)
        encoder, pooler = model, bool(case.pooler)
    model.eval()
    randomise(model)
    if case.bfloat16:
        for parameter in model.parameters():  # not the frequencies of a rotation
            parameter.data = parameter.data.to(torch.bfloat16)

    folder = HERE / case.name
    folder.mkdir(exist_ok=True)
    save(folder, case, model, encoder)
    write_pooling(folder, case)
    # Default of sentence-transformers for a model whose files name no pooling.
    causal = model.__class__.__name__.endswith("ForCausalLM")
    mode = case.pooling or ("last" if causal else "mean")
    predicts = str(case.part).startswith(("predictions", "splade", "answers"))
    head = model if case.head or predicts else None
    model.float()
    arrays = run(encoder, sequences, pooler, mode, case.normalize, head)
    add_parts(case, folder, arrays)
    np.savez_compressed(folder / "golden.npz", **arrays)
    print(f"{case.name}: {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file())} bytes")


TEXTS = (
    "Padding is wasted work.",
    "mule",
    "The pack train left at dawn, each animal carrying as much as it could and not a pound more.",
    "Ein Satz auf Deutsch, mit Umlauten: Öl, Ärger, Übung.",
    "1 + 1 = 2; 3.14159 is close to pi; e-mail: nobody@example.org",
    "A caravan crosses the high pass slowly. " * 25,
)


def make_minilm(folder: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    model.eval()
    sequences = [
        (np.asarray(ids), np.zeros(len(ids), np.int64))
        for ids in tokenizer(list(TEXTS), truncation=True, max_length=256)["input_ids"]
    ]
    arrays = run(model, sequences, True, "mean", True)
    np.savez_compressed(HERE / "minilm.npz", texts=np.array(TEXTS), **arrays)
    print(f"minilm.npz: {len(arrays['ids'])} tokens")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--minilm")
    arguments = parser.parse_args()
    # Drawn for every case, so that each gets the same whichever are made.
    generator = np.random.default_rng(2026)
    cases = MODELS + MODELS_WITH_HEADS + LATER_MODELS
    drawn = [(one, random_sequences(one, generator)) for one in cases]
    for one, its_sequences in drawn:
        if not arguments.names or one.name in arguments.names:
            make(one, its_sequences)
    if arguments.minilm:
        make_minilm(arguments.minilm)
