"""RoBERTa (Liu et al. 2019), XLM-RoBERTa and CamemBERT: BERT with another first position."""

from packhorse_weights.architectures.base import Architecture, encoder_spec
from packhorse_weights.architectures.bert import BUFFERS, ENCODER, NAMES
from packhorse_weights.architectures.heads import ROBERTA, ROBERTA_LM
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec


def spec(model_type: str, config: Config) -> Spec:
    return encoder_spec(model_type, config, config.tokens("pad_token_id", default=1, low=0))


ARCHITECTURE = Architecture(
    classes={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    spec=spec,
    names=NAMES,
    encoder=ENCODER,
    unused=BUFFERS,
    heads=ROBERTA,
    masked_lm=ROBERTA_LM,
)
