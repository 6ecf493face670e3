"""Makes tests/golden/pages: tiny random models that make vectors of pages, with what transformers
makes of some images and questions.

    pip install torch torchvision transformers tokenizers pillow
    python tests/golden/make_pages_golden.py   [NAME ...]

Each is a folder as users have them, with golden.npz beside it:

    image_ids_N, image_vectors_N    tokens of image N of `support/image_cases.py`, and their vectors
    query_ids_N, query_vectors_N    of a question
    scores                          [questions, images], sums of largest products

Everything was run alone in float32, with eager attention and the torchvision backend; ColPali with
the backend pil.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from make_golden import randomise
from make_vision_golden import randomise_all
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

sys.path.insert(0, str(Path(__file__).parents[1] / "python/support"))
from image_cases import SIZES, image

ROOM = Path(__file__).parent / "pages"
QUERIES = ("where do mules go", "what")
SIZES_OF = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
SEEN = {**SIZES_OF, "model_type": "siglip_vision_model", "image_size": 28, "patch_size": 7}
TRANSFORMERS: Any = transformers


def tokenizer_of(special: list[str], words: str, **named: str) -> Any:
    """A tokenizer of whole words with special tokens, of which the first four are padding, the
    begin, the end and what is unknown."""
    known = {token: i for i, token in enumerate([*special, *sorted({*words.split(" ")})])}
    made = Tokenizer(models.WordLevel(known, unk_token=special[3]))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.WhitespaceSplit()]
    )
    if named.pop("bert", ""):
        made.post_processor = processors.TemplateProcessing(
            single=f"{special[1]} $A {special[2]}",
            special_tokens=[(special[1], 1), (special[2], 2)],
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=special[0],
        unk_token=special[3],
        additional_special_tokens=special[4:],
        **named,
    )


def colmodernvbert() -> tuple[Any, Any]:
    rows = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "<fake_token_around_image>", "<image>"]
    special += ["<end_of_utterance>", "<global-img>", "<|begin_of_text|>", *rows]
    words = "User: Describe the image. Assistant: where do mules go what Question:"
    tokenizer = tokenizer_of(special, words, bert="yes", cls_token="[CLS]", sep_token="[SEP]")
    text = {
        **SIZES_OF,
        "model_type": "modernbert",
        "num_hidden_layers": 3,
        "vocab_size": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "cls_token_id": 1,
        "eos_token_id": 2,
        "sep_token_id": 2,
        "local_attention": 8,
    }
    inner = {
        "model_type": "modernvbert",
        "text_config": text,
        "vision_config": SEEN,
        "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
        "pixel_shuffle_factor": 2,
    }
    config = transformers.ColModernVBertConfig(vlm_config=inner, embedding_dim=16)
    images = transformers.Idefics3ImageProcessor(
        size={"longest_edge": 84}, max_image_size={"longest_edge": 28}
    )
    processor = transformers.ColModernVBertProcessor(
        images, tokenizer, image_seq_len=4, query_prefix="Question: "
    )
    return transformers.ColModernVBertForRetrieval(config), processor


class ColIdefics3(transformers.Idefics3PreTrainedModel):  # type: ignore[misc]
    """Idefics3 with a layer that makes vectors of length 1 of its outputs, under the names that
    checkpoints of ColSmol have."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = transformers.Idefics3Model(config)
        self.linear = torch.nn.Linear(config.text_config.hidden_size, 16)
        self.post_init()

    def forward(self, **inputs: Any) -> Any:
        hidden = self.model(**inputs).last_hidden_state
        found = torch.nn.functional.normalize(self.linear(hidden), dim=-1)
        return SimpleNamespace(embeddings=found)


class ColIdefics3Processor:
    """Prompts of ColSmol around the processor of Idefics3, and sums of largest products."""

    image = "<|im_start|>User:<image>Describe the image.<end_of_utterance>\nAssistant:"

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.save_pretrained = processor.save_pretrained

    def process_images(self, images: list[Any], **options: Any) -> Any:
        return self.processor(text=[self.image] * len(images), images=[images], **options)

    def process_queries(self, queries: list[str], **options: Any) -> Any:
        texts = ["Query: " + query + "<end_of_utterance>" * 10 for query in queries]
        return self.processor(text=texts, **options)

    def score_retrieval(self, queries: list[torch.Tensor], pages: list[torch.Tensor]) -> Any:
        made = [[(query @ page.T).amax(1).sum() for page in pages] for query in queries]
        return torch.tensor(made)


def colsmol() -> tuple[Any, Any]:
    """Three heads of which one has keys and values, as ColSmol's 9 have 3; no tokens around
    texts."""
    rows = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "[UNK]", "<fake_token_around_image>"]
    special += ["<image>", "<end_of_utterance>", "<global-img>", *rows]
    words = "User: Describe the image. Assistant: where do mules go what Query: \n"
    tokenizer = tokenizer_of(special, words, bos_token="<|im_start|>", eos_token="<|im_end|>")
    text = {
        **SIZES_OF,
        "model_type": "llama",
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "vocab_size": 64,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
    }
    config = transformers.Idefics3Config(
        text_config=text,
        vision_config={**SEEN, "model_type": "idefics3_vision"},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )
    images = transformers.Idefics3ImageProcessor(
        size={"longest_edge": 84}, max_image_size={"longest_edge": 28}
    )
    processor = transformers.Idefics3Processor(images, tokenizer, image_seq_len=4)
    return ColIdefics3(config), ColIdefics3Processor(processor)


MODELS = {"colmodernvbert": colmodernvbert, "colsmol": colsmol}


@torch.no_grad()
def run(model: Any, processor: Any) -> dict[str, np.ndarray]:
    made: dict[str, np.ndarray] = {}
    vectors: dict[str, list[torch.Tensor]] = {"image": [], "query": []}

    def add(kind: str, number: int, inputs: Any) -> None:
        inputs.pop("labels", None)
        found = model(**inputs).embeddings[0]
        vectors[kind].append(found)
        made[f"{kind}_ids_{number}"] = inputs["input_ids"][0].numpy().astype(np.int32)
        made[f"{kind}_vectors_{number}"] = found.numpy()

    for number in range(len(SIZES)):
        pillow = Image.fromarray(image(number))
        add("image", number, processor.process_images([pillow], return_tensors="pt"))
    for number, query in enumerate(QUERIES):
        add("query", number, processor.process_queries([query], return_tensors="pt"))
    made["scores"] = processor.score_retrieval(vectors["query"], vectors["image"]).numpy()
    return made


def make(name: str) -> None:
    torch.manual_seed(0)
    model, processor = MODELS[name]()
    model.set_attn_implementation("eager")
    randomise(model)
    randomise_all(model)
    folder = ROOM / name
    folder.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    fields = json.loads((folder / "config.json").read_text())
    fields.pop("transformers_version", None)
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n")
    np.savez_compressed(folder / "golden.npz", **run(model, processor))
    print(name)


def colpali_processor() -> tuple[Any, Any]:
    """(the processor, a tokenizer without the 1152 tokens of places that the processor adds)."""

    def tokenizer() -> Any:
        special = ["<pad>", "<eos>", "<bos>", "<unk>", "<image>"]
        words = "Describe the image. where do mules go what Question: \n"
        return tokenizer_of(special, words, bos_token="<bos>", eos_token="<eos>")

    images = transformers.SiglipImageProcessorPil(size={"height": 28, "width": 28})
    images.image_seq_length = 16
    return transformers.ColPaliProcessor(images, tokenizer()), tokenizer()


@torch.no_grad()
def make_colpali() -> None:
    """golden.npz has also `pixels`, `ids` and `vectors` of the model alone."""
    torch.manual_seed(0)
    text = {**SIZES_OF, "model_type": "gemma", "num_key_value_heads": 1, "head_dim": 16}
    inner = {
        "model_type": "paligemma",
        "text_config": {**text, "vocab_size": 64},
        "vision_config": {**SEEN, "vision_use_head": False, "projection_dim": 32},
        "image_token_index": 4,
        "projection_dim": 32,
    }
    config = transformers.ColPaliConfig(vlm_config=inner, embedding_dim=16)
    model = transformers.ColPaliForRetrieval(config).eval()
    model.set_attn_implementation("eager")
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape) * 0.2)
    folder = ROOM / "colpali"
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    fields = json.loads((folder / "config.json").read_text())
    fields.pop("transformers_version", None)
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n")
    pixels, ids = torch.randn(1, 3, 28, 28), torch.tensor([[4] * 16 + [2, 9, 10, 11, 12, 13]])
    zeros = torch.zeros_like(ids)
    inputs = {"input_ids": ids, "attention_mask": zeros + 1, "token_type_ids": zeros}
    found = model(pixel_values=pixels, **inputs).embeddings[0]
    arrays = {"pixels": pixels[0].numpy(), "ids": ids[0].numpy(), "vectors": found.numpy()}
    processor, tokenizer = colpali_processor()
    tokenizer.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder)
    np.savez_compressed(folder / "golden.npz", **arrays, **run(model, processor))
    print("colpali")


if __name__ == "__main__":
    for one in MODELS:
        if len(sys.argv) == 1 or one in sys.argv[1:]:
            make(one)
    if len(sys.argv) == 1 or "colpali" in sys.argv[1:]:
        make_colpali()
