"""The output of `packhorse inspect` for people: the result of `describe`, in sections."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packhorse.cli.tables import show_sections

_MOST_LABELS = 8  # number of labels that are shown
_LONGEST_PROMPT = 60

Found = Mapping[str, Any]
Rows = dict[str, str]


def _form(found: Mapping[str, Any]) -> str:
    own = {"gguf": "GGUF", "ctranslate2": "CTranslate2"}
    if found["format"] in own:
        return own[found["format"]]
    return "converted" if found["converted"] else f"Hugging Face ({found['format']})"


def show(found: Found) -> None:
    sections = {
        "Model": _model(found),
        "Outputs": _gives(found),
        **_inputs(found["text"]),
        "A session of it": _session(found["session"]),
    }
    show_sections(str(found["model"]), sections)


def _model(found: Found) -> Rows:
    size = found["size"]
    files = len(found["files"])
    rows = {
        "family": found["family"] or "not said",
        "form": _form(found),
        "parameters": f"{found['parameters']:,}",
        "stored as": ", ".join(f"{name} ({_bytes(n)})" for name, n in found["bytes"].items())
        + (f" in {files} files" if files > 1 else ""),
        **({"vocabulary": f"{size['vocabulary']:,}"} if "vocabulary" in size else {}),
        "hidden size": str(size["hidden"]),
        "layers": str(size["layers"]),
    }
    if "heads" in size:
        rows["attention heads"] = f"{size['heads']} of {size['head']}"
    if "feed_forward" in size:
        rows["feed-forward"] = f"{size['feed_forward']}, {size['activation']}"
    return rows


def _gives(found: Found) -> Rows:
    if not found["outputs"]:
        return {"methods": ", ".join(found["methods"])}
    embedding = found["embedding"]
    pooled = f"{embedding['columns']} columns: {' + '.join(embedding['pooling'])}"
    if embedding["normalize"]:
        pooled += ", normalised to length 1"
    if embedding["truncate_dim"] is not None:
        pooled += f"; embed gives the first {embedding['truncate_dim']}, as the files say"
    rows = {
        "methods": ", ".join(found["methods"]),
        "labels": _labels(found["labels"]),
        "embedding": pooled,
        "pooling because": embedding["pooling_reason"],
        **_listed(
            "outputs",
            [
                f"{name} [{output['per']}s, {output['columns']}]"
                for name, output in found["outputs"].items()
            ],
        ),
    }
    return {name: value for name, value in rows.items() if value}


def _listed(name: str, values: Iterable[str]) -> Rows:
    """Yields a row for each value, with the name beside the first one."""
    return {name if i == 0 else " " * i: value for i, value in enumerate(values)}


def _labels(labels: Sequence[str]) -> str:
    more = len(labels) - _MOST_LABELS
    return ", ".join(labels[:_MOST_LABELS]) + (f" and {more:,} more" if more > 0 else "")


def _inputs(found: Found) -> dict[str, Rows]:
    """The section that says what the model takes."""
    if "patch" not in found:
        return {"Text": _text(found)}
    height, width = found["image"]
    rows = {
        "trained with": f"{height} x {width} pixels",
        "patches": f"{found['patch']} x {found['patch']} pixels",
        "largest image": f"{found['longest']:,} patches",
    }
    return {"Images": rows}


def _text(text: Found) -> Rows:
    rows = {}
    if "tokenizer" in text:
        file = Path(text["tokenizer"]).name
        rows["tokenizer"] = (
            f"{text['kind']} of {text['tokens']:,} tokens ({file})" if "kind" in text else file
        )
    if "error" in text:
        rows["cannot be read"] = text["error"]
    cut_at = min(text["cut_at"] or text["longest"], text["longest"])
    rows["longest text"] = f"{cut_at:,} tokens" + (
        f" (the model takes {text['longest']:,})" if cut_at != text["longest"] else ""
    )
    default = text.get("default_prompt_name")
    prompts = [
        f"{name}: {_quoted(prompt)}{', the default' if name == default else ''}"
        for name, prompt in text.get("prompts", {}).items()
    ]
    return rows | _listed("prompts", prompts)


def _quoted(prompt: str) -> str:
    shown = json.dumps(prompt, ensure_ascii=False)
    return shown if len(shown) <= _LONGEST_PROMPT else f'{shown[:_LONGEST_PROMPT]}..."'


def _session(session: Found) -> Rows:
    tokens, sequences = session["max_tokens"], session["max_sequences"]
    rows = {
        "runs on": f"{session['device']}, in {session['dtype']}",
        "largest batch": f"{tokens:,} tokens, {sequences:,} sequences",
    }
    if "error" in session:
        return {**rows, "memory": f"cannot be planned here: {session['error']}"}
    size = session["bytes"]
    if "kv_tokens" in session:
        form = f", in {session['kv_cache_dtype']}" if session["kv_cache_dtype"] else ""
        rows["cache"] = (
            f"{session['kv_tokens']:,} tokens of {_bytes(session['bytes_per_token'])} each{form}"
        )
        if session["kv_tokens_asked"] is None:
            rows["cache"] += " by default; --kv-tokens N for more or less"
        count = session["sequences_of_longest_context"]
        rows["longest context"] = (
            f"{session['longest_context']:,} tokens; the cache takes {count:,} of that length"
        )
    sizes = {
        "weights": size["weights"],
        "arena": size["arena"],
        **{f"  {name}": count for name, count in session["buffers"].items()},
        **({"cache memory": size["cache"]} if "cache" in size else {}),
        "total": size["total"],
    }
    rows |= {name: f"{_bytes(count):>10}" for name, count in sizes.items()}
    rows["arena"] += "  (buffers that are never in use together share bytes)"
    return rows


def _bytes(count: int) -> str:
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
