"""Writes one language model in the forms that the engines of cpu_decode.py take.

    python benchmarks/generation/cpu_decode_models.py MODEL.gguf FOLDER

Run it with a Python that has transformers, torch, accelerate, gguf and, for engines of those names,
ctranslate2 and onnxruntime-genai (with onnx and onnx_ir). The weights are those of the GGUF file,
decoded to float32: f32.gguf, f16.gguf, bf16.gguf and q8_0.gguf for llama.cpp, hf/ for transformers,
ct2-float32/ and ct2-int8/ for CTranslate2, genai-fp32/, genai-int8/ and genai-int4/ for
onnxruntime-genai. The last two are quantised in blocks of 32, as Q8_0 and Q4_1 are.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}
# Minima as in Q4_1, and a head of 8 bits, which cannot then share its weight with the embedding.
INT4 = ["is_symmetric=false", "matmul_mixed_precision=last_matmul:int8", "shared_embeddings=false"]


def write_gguf(source: gguf.GGUFReader, name: str, path: Path) -> None:
    """Writes the metadata and tensors of a file, with matrices in another type."""
    field = source.get_field("general.architecture")
    writer = gguf.GGUFWriter(path, field.contents() if field else "llama")
    for key, value in source.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = value.types[0]
        contents = FILE_TYPES[name] if key == "general.file_type" else value.contents()
        writer.add_key_value(key, contents, kind, value.types[-1])
    for tensor in source.tensors:
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = TYPES[name] if data.ndim > 1 else TYPES["f32"]
        writer.add_tensor(tensor.name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_ctranslate2(folder: Path, target: Path) -> None:
    from ctranslate2.converters import TransformersConverter

    for quantization in ("float32", "int8"):
        TransformersConverter(str(folder)).convert(
            str(target / f"ct2-{quantization}"), quantization=quantization, force=True
        )


def write_onnxruntime(folder: Path, target: Path) -> None:
    """Converts by onnxruntime's own builder; the head is computed for the last token of a prompt
    alone."""
    for precision, more in {"fp32": [], "int8": [], "int4": INT4}.items():
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-e", "cpu"]
        command += ["-i", str(folder), "-o", str(target / f"genai-{precision}"), "-p", precision]
        command += ["-c", str(target / "cache")]
        command += ["--extra_options", "prune_lm_head=true", "hf_token=false", *more]
        subprocess.run(command, check=True)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(source)
    for name in TYPES:
        write_gguf(reader, name, target / f"{name}.gguf")
    folder = target / "hf"
    decoded = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    # Weights from a GGUF file count as quantised, and quantised models are not saved.
    config = decoded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(decoded)(config)
    model.load_state_dict(decoded.state_dict())
    model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(folder)
    if importlib.util.find_spec("ctranslate2"):
        write_ctranslate2(folder, target)
    if importlib.util.find_spec("onnxruntime_genai"):
        write_onnxruntime(folder, target)


if __name__ == "__main__":
    main()
