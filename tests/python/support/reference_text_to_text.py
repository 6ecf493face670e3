"""Logits of a model with an encoder and a decoder by its spec: NumPy in float64, one source and one
target at a time, written for reading."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import reference
from reference import Array

Spec = Mapping[str, Any]
Tensors = Mapping[str, Array]


def _bucket(distance: int, buckets: int, most: int, causal: bool) -> int:
    """The bucket of key position - query position (Raffel et al. 2020)."""
    base = 0
    if causal:
        distance = max(-distance, 0)
    else:
        buckets //= 2
        base, distance = (buckets if distance > 0 else 0), abs(distance)
    exact = buckets // 2
    if distance < exact:
        return base + distance
    far = math.log(distance / exact) / math.log(most / exact) * (buckets - exact)
    return base + min(exact + int(far), buckets - 1)


class _Stack:
    def __init__(self, spec: Spec, tensors: Tensors, name: str) -> None:
        self.spec = spec["stacks"][name]
        self._tensors, self._name = tensors, name
        self.pre = self.spec["norm"]["placement"] == "pre"
        self.attended: list[Array] = []  # weights of attention, block after block

    def tensor(self, name: str) -> Array | None:
        return self._tensors.get(f"{self._name}.{name}")

    def dense(self, name: str, x: Array, activation: str = "none") -> Array:
        return reference.linear(
            x, self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias"), activation
        )

    def norm(self, name: str, x: Array) -> Array:
        gamma, beta = self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias")
        eps = self.spec["norm"]["eps"]
        if self.spec["norm"]["kind"] == "rms":
            return reference.rms_norm(x, gamma, eps)
        return reference.layer_norm(x, gamma, beta, eps)

    def embed(self, words: Array, ids: Array) -> Array:
        stem = self.spec["stem"]
        x = words[ids] * stem.get("embedding_scale", 1.0)
        if stem["positions"]["kind"] == "learned":
            offset = stem["positions"].get("offset", 0)
            x = x + self.tensor("embeddings.position")[offset : offset + len(ids)]
        return self.norm("embeddings.norm", x) if stem.get("norm", True) else x

    def hear(self, frames: Array) -> Array:
        """The first layer's input of frames [frames, mels]: two convolutions, and positions."""
        x = frames.astype(np.float64)
        for i, stride in enumerate((1, 2)):
            weight = self.tensor(f"embeddings.convolution.{i}.weight")
            padded = np.pad(x, ((1, 1), (0, 0)))
            seen = np.stack([padded[at : at + 3] for at in range(0, len(x), stride)])
            flat = seen.transpose(0, 2, 1).reshape(len(seen), -1)
            bias = self.tensor(f"embeddings.convolution.{i}.bias")
            x = reference.linear(flat, weight.reshape(len(weight), -1), bias, "gelu")
        return x + self.tensor("embeddings.position")[: len(x)]

    def biases(self, layer: int, count: int, heads: int, causal: bool) -> Array | None:
        term = self.spec.get("score_term")
        if term is None:
            return None
        name = f"layers.{layer}.attention." if term.get("per_layer") else ""
        table = self.tensor(f"{name}relative_bias")
        numbers = [
            [_bucket(k - q, term["buckets"], term["max_distance"], causal) for k in range(count)]
            for q in range(count)
        ]
        return table[np.array(numbers)].transpose(2, 0, 1)  # [heads, queries, keys]

    def attend(self, block: Spec, name: str, x: Array, rows: Array, bias: Array | None) -> Array:
        heads, dim = block["num_heads"], block["head_dim"]

        def split(part: str, of: Array) -> Array:
            made = self.dense(f"{name}.{part}", of)
            return made.reshape(len(of), heads, dim).transpose(1, 0, 2)

        q, k, v = split("query", x), split("key", rows), split("value", rows)
        scores = q @ k.transpose(0, 2, 1) * block.get("scale", dim**-0.5)
        if bias is not None:
            scores = scores + bias
        if block.get("mask") == "causal":
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        self.attended.append(p / p.sum(-1, keepdims=True))
        mixed = self.attended[-1] @ v
        return self.dense(f"{name}.output", mixed.transpose(1, 0, 2).reshape(len(x), heads * dim))

    def feed(self, block: Spec, name: str, x: Array) -> Array:
        activation = block["activation"]
        if not block.get("gated"):
            return self.dense(f"{name}.down", self.dense(f"{name}.up", x, activation))
        inner = self.dense(f"{name}.gate", x, activation) * self.dense(f"{name}.up", x)
        return self.dense(f"{name}.down", inner)

    def run(self, x: Array, source: Array | None = None) -> Array:
        for i, layer in enumerate(self.spec["layers"]):
            for block in layer["blocks"]:
                kind = block["kind"]
                short = {"self_attention": "attention", "feed_forward": "ffn"}.get(kind, kind)
                name = f"layers.{i}.{short}"
                y = self.norm(f"{name}.norm", x) if self.pre else x
                if kind == "feed_forward":
                    given = self.feed(block, name, y)
                elif kind == "cross_attention":
                    assert source is not None
                    given = self.attend(block, name, y, source, None)
                else:
                    causal = block["mask"] == "causal"
                    bias = self.biases(i, len(x), block["num_heads"], causal)
                    given = self.attend(block, name, y, y, bias)
                x = x + given
                x = x if self.pre else self.norm(f"{name}.norm", x)
        return self.norm("final_norm", x) if self.pre else x


def hidden_of_audio(spec: Spec, tensors: Tensors, frames: Array) -> Array:
    """The encoder's last hidden state [frames / 2, E]."""
    encoder = _Stack(spec, tensors, "encoder")
    return encoder.run(encoder.hear(frames))


def weights_over_audio(spec: Spec, tensors: Tensors, read: Array, target: Array) -> Array:
    """Weights of cross attention [layers, heads, len(target), len(read)] after what
    `hidden_of_audio` gives."""
    decoder = _Stack(spec, tensors, "decoder")
    decoder.run(decoder.embed(decoder.tensor("embeddings.word"), target), read)
    return np.array(decoder.attended[1::2])


def speech_logits(spec: Spec, tensors: Tensors, read: Array, target: Array) -> Array:
    """`logits` of a model of speech, after what `hidden_of_audio` gives."""
    decoder = _Stack(spec, tensors, "decoder")
    words = decoder.tensor("embeddings.word")
    return decoder.run(decoder.embed(words, target), read) @ words.T


def weights_over_source(spec: Spec, tensors: Tensors, source: Array, target: Array) -> Array:
    """Weights of cross attention [layers, heads, len(target), len(source)]."""
    encoder, decoder = (_Stack(spec, tensors, name) for name in spec["stacks"])
    words = encoder.tensor("embeddings.word")
    own = words if "words" in decoder.spec["stem"] else decoder.tensor("embeddings.word")
    read = encoder.run(encoder.embed(words, source))
    decoder.run(decoder.embed(own, target), read)
    return np.array(decoder.attended[1::2])


def logits(spec: Spec, tensors: Tensors, source: Array, target: Array) -> Array:
    """[len(target), vocabulary] after each token of `target`, the first of which begins it."""
    encoder, decoder = (_Stack(spec, tensors, name) for name in spec["stacks"])
    words = encoder.tensor("embeddings.word")
    own = words if "words" in decoder.spec["stem"] else decoder.tensor("embeddings.word")
    read = encoder.run(encoder.embed(words, source))
    hidden = decoder.run(decoder.embed(own, target), read)
    lm = spec["heads"]["lm"]
    table = own if lm.get("tied") else tensors["lm.decoder.weight"]
    bias = tensors["lm.decoder.bias"] if lm.get("bias") else 0.0
    return hidden @ table.T * lm.get("scale", 1.0) + bias
