"""Chinese-CLIP (Yang et al. 2022, arXiv 2211.01335): CLIP's encoder of images beside a BERT, whose
first token stands for a text."""

from packhorse_weights.architectures import bert, clip, vision
from packhorse_weights.architectures.base import Architecture, Pooled, with_defaults
from packhorse_weights.architectures.towers import projected, similarity
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec


def text_spec(model_type: str, config: Config) -> Spec:
    config = with_defaults(
        config,
        vocab_size=30522,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=512,
    )
    return bert.spec(model_type, config)


def pooled_text(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
    fields = similarity(tensors, "softmax")
    return projected("cls", "the first token", "text_projection", tensors, fields)


TEXT = Architecture(
    classes={"chinese_clip_text_model": "ChineseCLIPText"},
    spec=text_spec,
    names={ours: theirs for ours, theirs in bert.NAMES.items() if ours != "pooler"},
    encoder=("embeddings.", "encoder."),
    unused=bert.BUFFERS,
    pooled=pooled_text,
)
IMAGES = Architecture(
    classes={"chinese_clip_vision_model": "ChineseCLIPVision"},
    spec=clip.image_spec,
    names=clip.IMAGE_NAMES,
    encoder=clip.IMAGES.encoder,
    unused=clip.IMAGES.unused,
    pooled=clip.pooled_image,
    made=clip.made_image,
)
