"""Names of fields in errors: the library names its own arguments, which no client has given."""

from __future__ import annotations

import re
from collections.abc import Mapping

FieldNames = Mapping[str, str]  # name in the library -> name on a route

_END = r"(?=:| is\b|\[| -?\d|,|$)"  # other words in messages are no names
_LENGTH = {"max_length": "the model's limit"}
CUT = {**_LENGTH, "truncation=False": "truncate=false"}
TEI = {**CUT, "texts[": "inputs[", "truncate_dim": "dimensions"}
ANSWERS = {"texts[": "inputs[", "max_length": "max_seq_len", "stride": "doc_stride"}
TO_TEXT = {
    **_LENGTH,
    "source": "src_lang",
    "target": "tgt_lang",
    "texts[": "inputs[",
    "n": "num_return_sequences",
}
OPENAI = {**TEI, "texts[": "input["}
RERANK = {**_LENGTH, "texts[": "documents[", "truncation=False": "truncation=false"}
SCORE = {**RERANK, "texts[": "pairs["}
COHERE = {**_LENGTH, "truncate_dim": "output_dimension", "truncation=False": 'truncate="NONE"'}


def in_fields(message: str, names: FieldNames) -> str:
    """The message with these names."""
    for ours, field in names.items():
        end = "" if ours.endswith("[") else _END
        message = re.sub(rf"(?<![\w.'\"]){re.escape(ours)}{end}", field, message)
    return message
