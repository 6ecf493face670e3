"""Makes the golden models and outputs of this folder with transformers.

    pip install torch transformers            (made with torch 2.13.0 and transformers 5.23.0)
    python tests/golden/make_golden.py              the tiny random models
    python tests/golden/make_golden.py NAME ...     those of these names only
    python tests/golden/make_golden.py --minilm FOLDER
                                                    minilm.npz, from the folder of all-MiniLM-L6-v2

Each tiny model is a folder as users have them, with golden.npz beside it:

    ids, type_ids, cu_seqlens   the packed batch (type_ids all zero where the model has none)
    hidden                      [T, hidden_size] last_hidden_state
    pooled                      [B, hidden_size] pooler_output, where the files hold a pooler
    embedding                   [B, hidden_size] as the folder's pooling files say

Every sequence was run alone, so without padding, in float32 with eager attention. The weights are
larger than a trained model's, the norms far from identity: so a wrong activation, position, type,
scale or tensor shows.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

HERE = Path(__file__).parent
LENGTHS = (17, 1, 64, 2, 100, 5, 31)
NAMES = {  # a pooling mode of ours -> its flag in sentence-transformers' Pooling config
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt": "pooling_mode_mean_sqrt_len_tokens",
    "last": "pooling_mode_lasttoken",
}


@dataclass
class Case:
    """One tiny model: what differs from two layers of width 32 (DEFAULTS)."""

    name: str
    model_type: str = "bert"
    config: dict[str, Any] = field(default_factory=dict)
    # safetensors, sharded, old_bin; masked_lm and causal_lm have a prefix, and no pooler
    layout: str = "safetensors"
    pooler: bool | None = True  # None: the model type knows none
    bfloat16: bool = False  # weights as stored; computed in float32 all the same
    pooling: str | None = None  # None: no sentence-transformers files
    normalize: bool = False
    lengths: tuple[int, ...] = LENGTHS
    pooling_as_text: bool = False  # the newer form of the Pooling config


CASES = (
    Case("bert-gelu", pooling="mean", normalize=True),
    Case("bert-gelu-new", config={"hidden_act": "gelu_new"}, pooling="cls", pooling_as_text=True),
    Case("bert-relu", config={"hidden_act": "relu"}, pooling="max"),
    Case("bert-silu", config={"hidden_act": "silu"}, pooling="last", normalize=True),
    Case(
        "bert-312",
        config={
            "hidden_size": 312,
            "num_attention_heads": 12,
            "num_hidden_layers": 1,
            "intermediate_size": 96,
        },
        pooler=False,
        bfloat16=True,
        pooling="mean_sqrt",
        lengths=(17, 1, 33, 2),
    ),
    Case(
        "bert-odd",
        config={"hidden_size": 40, "num_attention_heads": 5, "intermediate_size": 53},
    ),
    Case("bert-no-pooler", pooler=False),
    Case("bert-sharded", layout="sharded", pooling="mean"),
    Case("bert-old-bin", layout="old_bin"),
    Case("roberta", "roberta", pooling="mean"),
    Case("xlm-roberta", "xlm-roberta", pooling="mean", normalize=True),
    Case("camembert", "camembert", layout="masked_lm"),
    Case("distilbert", "distilbert", pooler=None, pooling="mean"),
    Case(
        "distilbert-odd",
        "distilbert",
        config={"dim": 40, "n_heads": 5, "hidden_dim": 53, "activation": "relu"},
        pooler=None,
        layout="masked_lm",
    ),
    Case("electra-small", "electra", config={"embedding_size": 24}, pooler=None),
    Case(
        "electra-base",
        "electra",
        config={"embedding_size": 32, "layer_norm_eps": 1e-5, "hidden_act": "relu"},
        pooler=None,
        layout="masked_lm",
    ),
    Case("albert", "albert", config={"embedding_size": 16, "num_hidden_layers": 3}),
    Case(
        "albert-groups",
        "albert",
        config={
            "embedding_size": 21,
            "hidden_size": 40,
            "num_attention_heads": 5,
            "num_hidden_layers": 5,
            "num_hidden_groups": 2,
            "hidden_act": "gelu",
        },
        pooling="mean",
        normalize=True,
    ),
    Case(
        "mpnet",
        "mpnet",
        config={"max_position_embeddings": 304},
        pooling="mean",
        normalize=True,
        lengths=(17, 1, 300, 2, 129),
    ),
    Case(
        "mpnet-odd",
        "mpnet",
        config={"hidden_size": 42, "num_attention_heads": 3, "intermediate_size": 51},
        pooler=False,
    ),
    Case(
        "modernbert",
        "modernbert",
        config={"num_hidden_layers": 5, "local_attention": 24, "layer_types": None},
        pooler=None,
        pooling="cls",
    ),
    Case(
        "modernbert-odd",
        "modernbert",
        config={
            "hidden_size": 36,
            "num_attention_heads": 3,
            "intermediate_size": 39,
            "num_hidden_layers": 3,
            "hidden_activation": "silu",
            "local_attention": 2,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
        },
        pooler=None,
        layout="masked_lm",
    ),
    Case("nomic-bert", "nomic_bert", pooler=None, pooling="mean", normalize=True),
    Case(
        "nomic-bert-odd",
        "nomic_bert",
        config={
            "hidden_size": 42,
            "num_attention_heads": 3,
            "intermediate_size": 51,
            "hidden_act": "gelu_new",
        },
    ),
    Case("gte", "gte", pooler=None, pooling="cls"),
    Case(
        "gte-odd",
        "gte",
        config={
            "type_vocab_size": 2,
            "hidden_size": 40,
            "num_attention_heads": 5,
            "intermediate_size": 70,
            "hidden_act": "relu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        },
        layout="masked_lm",
    ),
    Case("qwen2", "qwen2", config={"num_key_value_heads": 2}, pooler=None, pooling="last"),
    Case(
        "qwen2-window",
        "qwen2",
        config={
            "num_key_value_heads": 1,
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
        layout="causal_lm",
        pooler=None,
    ),
    Case(
        "qwen3",
        "qwen3",
        config={"num_key_value_heads": 2, "head_dim": 24},
        pooler=None,
        pooling="last",
        normalize=True,
    ),
    Case(
        "qwen3-odd",
        "qwen3",
        config={
            "hidden_size": 35,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "head_dim": 10,
            "intermediate_size": 47,
            "attention_bias": True,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
        pooler=None,
        layout="causal_lm",
    ),
    Case("llama", "llama", config={"attention_bias": True, "mlp_bias": True}, pooler=None),
    Case(
        "llama-grouped",
        "llama",
        config={"num_key_value_heads": 2, "head_dim": 12, "hidden_act": "gelu"},
        pooler=None,
        pooling="mean",
    ),
    Case(
        "mistral",
        "mistral",
        config={"num_key_value_heads": 2, "sliding_window": 16},
        pooler=None,
        pooling="last",
        normalize=True,
    ),
    Case(
        "deberta",
        "deberta",
        config={
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_biased_input": False,
            "max_position_embeddings": 120,
        },
        pooler=None,
    ),
    Case(
        "deberta-odd",
        "deberta",
        config={
            "relative_attention": True,
            "max_relative_positions": 30,
            "pos_att_type": "p2c",
            "type_vocab_size": 2,
            "hidden_size": 42,
            "num_attention_heads": 3,
            "hidden_act": "relu",
        },
        pooler=None,
        layout="masked_lm",
    ),
    Case(
        "deberta-v3",
        "deberta-v2",
        config={
            "relative_attention": True,
            "position_buckets": 32,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "max_position_embeddings": 310,
        },
        pooler=None,
        pooling="mean",
        lengths=(17, 1, 300, 2, 129, 64),
    ),
    Case(
        "deberta-v2-own-projections",
        "deberta-v2",
        config={
            "relative_attention": True,
            "max_relative_positions": 40,
            "pos_att_type": "c2p|p2c",
            "type_vocab_size": 2,
            "hidden_size": 42,
            "num_attention_heads": 3,
        },
        pooler=None,
        layout="masked_lm",
    ),
    Case(
        "deberta-v2-c2p",
        "deberta-v2",
        config={
            "relative_attention": True,
            "position_buckets": 6,
            "max_relative_positions": 20,
            "pos_att_type": ["c2p"],
            "share_att_key": True,
            "position_biased_input": False,
        },
        pooler=None,
    ),
    Case(
        "deberta-v2-convolution",
        "deberta-v2",
        config={
            "relative_attention": True,
            "position_buckets": 64,
            "max_relative_positions": 90,
            "pos_att_type": ["p2c"],
            "conv_kernel_size": 3,
            "conv_act": "gelu",
            "position_biased_input": False,
            "num_attention_heads": 1,
        },
        pooler=None,
    ),
)

# Two layers of width 32, under the names that most configs use.
DEFAULTS = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 120,
}
_ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
DEFAULTS_OF: dict[str, dict[str, Any]] = {
    "bert": {"type_vocab_size": 2, "pad_token_id": 0, "layer_norm_eps": 1e-12},
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "mpnet": {"layer_norm_eps": 1e-5},
    "nomic_bert": {"pad_token_id": 0},
    "modernbert": {
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 1,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
}
# Of which these are named differently in the config.
RENAMED = {
    "distilbert": {
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
    }
}


# Linear layers whose outputs meet in a score.
QUERIES_AND_KEYS = (  # also of positions
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
        elif isinstance(module, nn.LayerNorm) or type(module).__name__.endswith("RMSNorm"):
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
) -> dict[str, np.ndarray]:
    """Runs each (ids, type_ids) alone; the arrays of golden.npz."""
    ids, types, hidden, pooled, embedding = [], [], [], [], []
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
        # As the first BERT checkpoints were: a prefix, a head, TensorFlow's names of a LayerNorm.
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
    elif case.layout in ("masked_lm", "causal_lm"):
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
    if case.layout == "masked_lm":
        model: Any = transformers.AutoModelForMaskedLM.from_config(config)
        encoder, pooler = model.base_model, False
    elif case.layout == "causal_lm":
        model = transformers.AutoModelForCausalLM.from_config(config)
        encoder, pooler = model.base_model, False
    else:
        options = {} if case.pooler is None else {"add_pooling_layer": case.pooler}
        model = transformers.AutoModel.from_config(config, **options)
        encoder, pooler = model, bool(case.pooler)
    model.eval()
    randomise(model)
    if case.bfloat16:
        model.to(torch.bfloat16)

    folder = HERE / case.name
    folder.mkdir(exist_ok=True)
    save(folder, case, model, encoder)
    write_pooling(folder, case)
    mode = case.pooling or ("cls" if pooler else "mean")
    arrays = run(encoder.float(), sequences, pooler, mode, case.normalize)
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
    drawn = [(one, random_sequences(one, generator)) for one in CASES]
    for one, its_sequences in drawn:
        if not arguments.names or one.name in arguments.names:
            make(one, its_sequences)
    if arguments.minilm:
        make_minilm(arguments.minilm)
