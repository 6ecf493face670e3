"""Makes gguf_t5/NAME.gguf: tiny T5s as llama.cpp's converter writes them, and expected.npz: what
transformers makes of their weights.

    pip install torch transformers gguf sentencepiece      (made with torch 2.13.0, transformers
                                                            5.13.0, gguf 0.19.0)
    python tests/golden/make_gguf_t5_golden.py

The models are those of `text_to_text_models.make_folder`; NAME-encoder is the encoder alone. Their
matrices are in types that lose something, after which transformers is run:

    NAME/source, NAME/target     tokens
    NAME/logits                  after each token of the target
    NAME/hidden                  of the encoder, for the source
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import sentencepiece
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from sentencepiece import sentencepiece_model_pb2

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "python" / "support"))
from text_to_text_models import make_folder  # noqa: E402

FOLDER = HERE / "gguf_t5"
NAMES = ("t5", "t5-gated", "umt5")
TYPES = {"t5": [Type.F16], "t5-gated": [Type.Q8_0, Type.Q4_0, Type.Q5_1], "umt5": [Type.BF16]}
LONG = 40  # tokens of the source


def add_tokenizer(writer: gguf.GGUFWriter, path: Path, size: int) -> None:
    """As the converter does: ids without a piece, sentinels among them, become unused tokens."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    kind = gguf.TokenType
    kinds = [
        kind.UNKNOWN if model.is_unknown(i)
        else kind.CONTROL if model.is_control(i)
        else kind.UNUSED if model.is_unused(i)
        else kind.NORMAL
        for i in range(model.get_piece_size())
    ]  # fmt: skip
    more = range(len(kinds), size)
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    tokens = [model.id_to_piece(i) for i in range(len(kinds))] + [f"[PAD{i}]" for i in more]
    writer.add_token_list(tokens)
    scores = [model.get_score(i) for i in range(len(kinds))]
    writer.add_token_scores(scores + [-10000.0] * len(more))
    writer.add_token_types(kinds + [kind.UNUSED] * len(more))
    writer.add_add_space_prefix(proto.normalizer_spec.add_dummy_prefix)
    writer.add_remove_extra_whitespaces(proto.normalizer_spec.remove_extra_whitespaces)
    if proto.normalizer_spec.precompiled_charsmap:
        writer.add_precompiled_charsmap(proto.normalizer_spec.precompiled_charsmap)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(True)


def add_keys(writer: gguf.GGUFWriter, config: Any, decoder: bool) -> None:
    writer.add_context_length(512)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_block_count(config.num_layers)
    if decoder:
        writer.add_decoder_block_count(config.num_decoder_layers)
        writer.add_decoder_start_token_id(config.decoder_start_token_id)
    else:  # llama.cpp needs it in order to give the vectors of transformers
        writer.add_causal_attention(False)
    writer.add_head_count(config.num_heads)
    writer.add_key_length(config.d_kv)
    writer.add_value_length(config.d_kv)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_relative_attn_buckets_count(config.relative_attention_num_buckets)
    writer.add_file_type(1)


def stored(value: np.ndarray, kind: Type) -> tuple[np.ndarray, Type]:
    if value.ndim < 2:
        return value, Type.F32
    elements = gguf.GGML_QUANT_SIZES[kind][0]
    chosen = kind if value.shape[1] % elements == 0 else Type.F16
    return gguf.quantize(value, chosen), chosen


def write(path: Path, model: Any, pieces: Path, kinds: list[Type], decoder: bool) -> dict[str, Any]:
    """The weights that the file stands for, by transformers' names."""
    config = model.config
    arch = gguf.MODEL_ARCH.T5 if decoder else gguf.MODEL_ARCH.T5ENCODER
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_name(path.stem)
    add_keys(writer, config, decoder)
    add_tokenizer(writer, pieces, config.vocab_size)
    names = gguf.get_tensor_name_map(arch, max(config.num_layers, config.num_decoder_layers))
    state = {name: value.float().numpy() for name, value in model.state_dict().items()}
    if np.array_equal(state["lm_head.weight"], state["shared.weight"]):
        del state["lm_head.weight"]
    read = {}
    for number, (theirs, value) in enumerate(state.items()):
        if "embed_tokens" in theirs or (theirs.startswith(("decoder.", "lm_head")) and not decoder):
            continue
        ours = names.get_name(theirs, try_suffixes=(".weight",))
        assert ours is not None, theirs
        data, kind = stored(np.ascontiguousarray(value), kinds[number % len(kinds)])
        writer.add_tensor(ours, data, raw_dtype=kind)
        read[theirs] = torch.tensor(gguf.dequantize(data, kind).reshape(value.shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read


@torch.inference_mode()
def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    random = np.random.default_rng(5)
    for name in NAMES:
        with tempfile.TemporaryDirectory() as room:
            folder = make_folder(Path(room) / name, name, "t5")
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                relative_attention_max_distance=128,  # files cannot name another
            ).eval()
            # Outputs are scaled where the table makes them; version 5.13 does it for UMT5 as well.
            if name == "umt5":
                model.config.tie_word_embeddings = False
            pieces = folder / "spiece.model"
            size = model.config.vocab_size
            read = write(FOLDER / f"{name}.gguf", model, pieces, TYPES[name], True)
            if name == "t5-gated":
                write(FOLDER / f"{name}-encoder.gguf", model, pieces, TYPES[name], False)
        missing = model.load_state_dict(read, strict=False).missing_keys
        assert all("embed_tokens" in one or one == "lm_head.weight" for one in missing), missing
        source, target = (random.integers(3, size, n).astype(np.int32) for n in (LONG, 30))
        target[0] = 0
        found = model(
            input_ids=torch.tensor(source[None]).long(),
            decoder_input_ids=torch.tensor(target[None]).long(),
        )
        arrays[f"{name}/source"], arrays[f"{name}/target"] = source, target
        arrays[f"{name}/logits"] = found.logits[0].numpy()
        arrays[f"{name}/hidden"] = found.encoder_last_hidden_state[0].numpy()
        print(name, model.config.tie_word_embeddings, size, missing)
    np.savez_compressed(FOLDER / "expected.npz", **arrays)


if __name__ == "__main__":
    main()
