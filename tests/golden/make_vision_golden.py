"""Makes tests/golden/vision: tiny random models of images, and of images and texts, with what
transformers makes of random pictures.

    pip install torch transformers              (made with torch 2.13.0, transformers 5.24.0)
    python tests/golden/make_vision_golden.py   [NAME ...]

Each is a folder as users have them, with golden.npz beside it:

    features, grids      the packed batch: patches of all pictures, [P, k], and grids [B, 2]
    hidden               [T, hidden_size] of all rows, after the last norm
    embedding            [B, columns] as docs/models.md says
    logits               [B, num_labels], where the files hold a classifier
    ids, cu_seqlens, text_hidden, text_embedding    of the text tower, where there is one
    similarity           [B, texts] logits_per_image, where there are both

Every picture was run alone in float32, with eager attention. Sizes other than that of training are
there: positions are interpolated as transformers does. `errors_16_bits.json` says how far PyTorch's
own results in bfloat16 and float16 are from these: the root of the mean square of all elements.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from make_golden import randomise
from torch import nn

ROOM = Path(__file__).parent / "vision"
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
PICTURES = {"image_size": 28, "patch_size": 7}
TEXTS = {
    **SIZES,
    "vocab_size": 99,
    "max_position_embeddings": 16,
    "bos_token_id": 97,
    "eos_token_id": 98,
    "pad_token_id": 1,
}
SQUARE = ((4, 4),)
MANY = ((4, 4), (1, 1), (3, 7), (9, 2), (4, 4), (6, 6))
TRANSFORMERS: Any = transformers


@dataclass
class Case:
    name: str
    family: str  # the beginning of its class names
    kind: str = "Model"  # how its class name ends
    config: dict[str, Any] = field(default_factory=dict)
    grids: tuple[tuple[int, int], ...] = MANY
    bfloat16: bool = False


_SHARED = {"use_shared_relative_position_bias": True}
CASES = (
    Case("vit", "ViT", config={"num_labels": 5}, kind="ForImageClassification"),
    Case("vit-pooler", "ViT", config={"qkv_bias": False, "hidden_act": "gelu_new"}, grids=SQUARE),
    Case("deit", "DeiT", "ForImageClassificationWithTeacher", {"num_labels": 3}),
    Case("dinov2", "Dinov2", config={"mlp_ratio": 2}),
    Case("dinov2-classes", "Dinov2", "ForImageClassification", {"num_labels": 3, "mlp_ratio": 2}),
    Case("dinov2-swiglu", "Dinov2", config={"use_swiglu_ffn": True}, bfloat16=True),
    Case(
        "dinov2-registers",
        "Dinov2WithRegisters",
        "ForImageClassification",
        {"num_labels": 3, "mlp_ratio": 2, "num_register_tokens": 3},
    ),
    Case("dinov3", "DINOv3ViT", config={"num_register_tokens": 3}),
    Case("dinov3-gated", "DINOv3ViT", config={"use_gated_mlp": True, "hidden_act": "silu"}),
    Case("beit", "Beit", config={"use_relative_position_bias": True}),
    Case("beit-cls", "Beit", config={**_SHARED, "use_mean_pooling": False}),
    Case("beit-classes", "Beit", "ForImageClassification", {**_SHARED, "num_labels": 3}),
    Case("clip", "CLIP", config={"projection_dim": 24}),
    Case("clip-vision", "CLIPVision", "ModelWithProjection", {"projection_dim": 24}),
    Case("chinese-clip", "ChineseCLIP", config={"projection_dim": 24}),
    Case("siglip", "Siglip"),
    Case("siglip-classes", "Siglip", "ForImageClassification", {"num_labels": 3}, grids=SQUARE),
    Case("siglip2-naflex", "Siglip2", config={"projection_size": 32}),
)


def has_towers(case: Case) -> bool:
    return case.family in ("CLIP", "ChineseCLIP", "Siglip", "Siglip2")


def config_of(case: Case) -> Any:
    kind = getattr(TRANSFORMERS, f"{case.family}Config")
    if not has_towers(case):
        return kind(**SIZES, **PICTURES, **case.config)
    pictures = {**SIZES, **PICTURES}
    if case.family == "Siglip2":
        pictures = {**SIZES, "patch_size": 7, "num_patches": 16}
    outer = {k: v for k, v in case.config.items() if k in ("num_labels", "projection_dim")}
    own = {k: v for k, v in case.config.items() if k not in outer}
    return kind(text_config={**TEXTS, **own}, vision_config=pictures, **outer)


def randomise_all(model: nn.Module) -> None:
    randomise(model)
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        if name.endswith(("_token", "_tokens", "_embeddings", "probe", "class_embedding")):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)
        if name.endswith(("lambda1", "lambda_1", "lambda_2")):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.4 + 0.8)
        if name.endswith(
            ("projection.weight", "patch_embedding.weight", "patch_embeddings.weight")
        ) and (parameter.dim() == 4 or "patch_embedding" in name):
            scale = parameter[0].numel() ** -0.5
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        if name.endswith(("in_proj_weight", "in_proj_bias")):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)
        if name.endswith("bias_table"):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
        if name.endswith("logit_bias"):
            parameter.data.fill_(-1.5)


def cells(picture: torch.Tensor, size: int) -> np.ndarray:
    """[channels, height, width] -> [patches, channels * size * size], as a convolution reads."""
    channels, height, width = picture.shape
    parts = picture.reshape(channels, height // size, size, width // size, size)
    return parts.permute(1, 3, 0, 2, 4).reshape(-1, channels * size * size).numpy()


def inputs_of(case: Case, picture: torch.Tensor, grid: tuple[int, int]) -> dict[str, Any]:
    if case.family != "Siglip2":
        inputs: dict[str, Any] = {"pixel_values": picture[None]}
        if case.family not in ("Dinov2", "Dinov2WithRegisters", "DINOv3ViT", "Beit"):
            inputs["interpolate_pos_encoding"] = True
        return inputs
    size, (rows, columns) = 7, grid  # channels last in a patch
    parts = picture.reshape(3, rows, size, columns, size).permute(1, 3, 2, 4, 0)
    return {
        "pixel_values": parts.reshape(1, rows * columns, -1),
        "pixel_attention_mask": torch.ones(1, rows * columns, dtype=torch.int64),
        "spatial_shapes": torch.tensor([grid]),
    }


@torch.no_grad()
def run(case: Case, model: Any) -> dict[str, np.ndarray]:
    generator = torch.Generator().manual_seed(11)
    arrays: dict[str, list[Any]] = {name: [] for name in ("features", "hidden", "embedding")}
    arrays["logits"] = []
    towers = has_towers(case) and case.kind == "Model"
    for grid in case.grids:
        picture = torch.randn((3, grid[0] * 7, grid[1] * 7), generator=generator)
        picture = picture.to(model.dtype)
        arrays["features"].append(cells(picture.float(), 7))
        inputs = inputs_of(case, picture, grid)
        whole = getattr(model, "base_model", model) if not has_towers(case) else model.vision_model
        if case.name == "clip-vision":
            whole = model.vision_model
        if case.family == "DINOv3ViT":  # what is called its base is the layers alone
            whole = model
        output = whole(**inputs)
        hidden = output.last_hidden_state[0]
        if "CLIP" in case.family:
            hidden = whole.post_layernorm(hidden)
        arrays["hidden"].append(hidden)
        if towers:
            embedding = model.get_image_features(**inputs)
            embedding = getattr(embedding, "pooler_output", embedding)[0]
            embedding = nn.functional.normalize(embedding, dim=0)
        elif case.name == "clip-vision":
            embedding = model(**inputs).image_embeds[0]
        elif has_towers(case) or case.family == "Beit":
            embedding = output.pooler_output[0]
        else:
            embedding = hidden[0]
        arrays["embedding"].append(embedding[None])
        if case.family == "ViT" and getattr(model, "pooler", None) is not None:
            arrays.setdefault("pooled", []).append(output.pooler_output)
        if "Classification" in case.kind:
            arrays["logits"].append(model(**inputs).logits)
    made = {
        name: torch.cat([as_float(row) for row in rows]).numpy()
        for name, rows in arrays.items()
        if rows
    }
    made["grids"] = np.array(case.grids, np.int32)
    if towers and model.dtype == torch.float32:
        made |= run_texts(case, model, made["embedding"])
    return made


def as_float(rows: Any) -> torch.Tensor:
    return torch.as_tensor(rows).float()


def errors_of(case: Case) -> dict[str, dict[str, float]]:
    """{dtype: {output: the error of PyTorch}} of a model that was made."""
    kind = getattr(TRANSFORMERS, case.family + case.kind)
    with np.load(ROOM / case.name / "golden.npz") as golden:
        expected = dict(golden)
    errors: dict[str, dict[str, float]] = {}
    for dtype in (torch.bfloat16, torch.float16):
        model = kind.from_pretrained(ROOM / case.name, attn_implementation="eager", dtype=dtype)
        found = run(case, model.eval())
        errors[str(dtype).removeprefix("torch.")] = {
            name: float(f"{np.sqrt(np.square(found[name] - expected[name]).mean()):.3g}")
            for name in ("hidden", "embedding")
        }
    return errors


def run_texts(case: Case, model: Any, images: np.ndarray) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    lengths = (16, 16, 16) if "Siglip" in case.family else (16, 2, 7)
    ids, hidden, embedding = [], [], []
    for n in lengths:
        one = draw.integers(2, 97, n)
        one[0], one[-1] = 97, 98
        if "Siglip" in case.family:
            one[0] = 5
            one[n // 2 :] = 1  # padding, which is attended to
        ids.append(one)
        inputs = {"input_ids": torch.tensor(one)[None]}
        hidden.append(model.text_model(**inputs).last_hidden_state[0])
        vector = model.get_text_features(**inputs)
        vector = getattr(vector, "pooler_output", vector)[0]
        embedding.append(nn.functional.normalize(vector, dim=0))
    texts = torch.stack(embedding)
    scores = torch.tensor(images) @ texts.T * model.logit_scale.exp()
    if hasattr(model, "logit_bias"):
        scores = scores + model.logit_bias
    return {
        "ids": np.concatenate(ids).astype(np.int32),
        "cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32),
        "text_hidden": np.concatenate(hidden),
        "text_embedding": texts.numpy(),
        "similarity": scores.numpy(),
    }


def make(case: Case) -> None:
    torch.manual_seed(0)
    config = config_of(case)
    config._attn_implementation = "eager"
    model = getattr(TRANSFORMERS, case.family + case.kind)(config).eval()
    randomise_all(model)
    if case.bfloat16:
        model = model.to(torch.bfloat16)
    folder = ROOM / case.name
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    fields = json.loads((folder / "config.json").read_text())
    fields.pop("transformers_version", None)
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n")
    np.savez_compressed(folder / "golden.npz", **run(case, model.float()))
    print(case.name)


def write_errors() -> None:
    made = {case.name: errors_of(case) for case in CASES}
    (ROOM / "errors_16_bits.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    for one in CASES:
        if len(sys.argv) == 1 or one.name in sys.argv[1:]:
            make(one)
    write_errors()
