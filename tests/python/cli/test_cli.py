"""The command line, as a user sees it: output, files, exit status, and one line for an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from command_line import Cli, failed
from packhorse_weights import convert, inspect_checkpoint

for needed in ("typer", "rich", "tokenizers"):
    pytest.importorskip(needed)


GOLDEN = Path(__file__).parents[2] / "golden"
BERT = GOLDEN / "bert-gelu"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted tiny model with a tokenizer: the word wN is the id N, [1] and [2] around."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("models") / "tiny"
    convert(BERT, folder)
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2} | {f"w{i}": i for i in range(3, 100)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.enable_padding(length=50)  # as published tokenizers do; must have no effect here
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def ids(line: str, length: int = 120) -> list[int]:
    words = [int(word[1:]) for word in line.split()]
    return [1, *words[: length - 2], 2]


LINES = [
    "w7 w8 w9",
    "",
    "w50",
    " ".join(f"w{3 + i % 97}" for i in range(200)),
    "w5 " * 30,
    "w99",
]
CUT = "packhorse: lines cut short at 120 tokens: 1\n"
DONE = "packhorse: 6 x 32 float32 in {}\n"


def expected(model: Path, lines: list[str], length: int = 120) -> Any:
    session = packhorse.Session.load(model)
    return session.run_many([ids(line, length) for line in lines], outputs=["embedding"]).embedding


@pytest.fixture(scope="module")
def vectors(model: Path) -> Any:
    return expected(model, LINES)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


# --- convert


def test_convert(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = cli("convert", BERT, out, "--dtype", "bfloat16")
    assert done == (0, f"{out}\n", "")
    assert {t.dtype for t in inspect_checkpoint(out).tensors.values()} == {"bfloat16"}
    assert failed(cli("convert", BERT, out), str(out), "not empty")
    assert cli("convert", BERT, out, "--overwrite").status == 0
    assert {t.dtype for t in inspect_checkpoint(out).tensors.values()} == {"float32"}


def test_convert_quantized(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("convert", BERT, out, "--quantize", "int8").status == 0
    assert inspect_checkpoint(out).tensors["layers.0.ffn.up.weight"].dtype == "int8"
    assert failed(cli("convert", BERT, tmp_path / "m", "--quantize", "int3"), "'int3' is not one")


def test_convert_errors(cli: Cli, tmp_path: Path) -> None:
    assert failed(cli("convert", tmp_path / "none", tmp_path / "out"), "none: no such file")
    assert failed(cli("convert", tmp_path, tmp_path / "out"), "no config.json")
    assert failed(cli("convert", BERT, tmp_path / "out", "--dtype", "int3"), "'int3'", "float16")
    (tmp_path / "config.json").write_text('{"model_type": "blip"}')
    assert failed(cli("convert", tmp_path, tmp_path / "out"), "blip", "bert, roberta")
    assert not (tmp_path / "out").exists()


# --- embed


def test_embed_npy(cli: Cli, model: Path, text: Path, tmp_path: Path, vectors: Any) -> None:
    out = tmp_path / "vectors.npy"
    assert cli("embed", model, text, "-o", out) == (0, "", CUT + DONE.format(out))
    found = np.load(out)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, vectors)


def test_embed_jsonl(cli: Cli, model: Path, text: Path, tmp_path: Path, vectors: Any) -> None:
    shown = cli("embed", model, text)
    assert (shown.status, shown.err) == (0, CUT)
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [row["index"] for row in rows] == list(range(len(LINES)))
    found = np.array([row["embedding"] for row in rows], np.float32)
    np.testing.assert_array_equal(found, vectors)  # the text form loses nothing

    out = tmp_path / "vectors.jsonl"
    assert cli("embed", model, text, "-o", out) == (0, "", CUT + DONE.format(out))
    assert (tmp_path / "vectors.jsonl").read_text() == shown.out
    assert cli("embed", model, text, "-o", tmp_path / "x.txt", "--format", "jsonl").status == 0
    assert (tmp_path / "x.txt").read_text() == shown.out
    assert cli("embed", model, text, "-o", tmp_path / "no_ending").status == 0
    assert (tmp_path / "no_ending").read_text() == shown.out


def test_embed_stdin(cli: Cli, model: Path, text: Path, vectors: Any) -> None:
    shown = cli("embed", model, "-", stdin=text.read_bytes())
    rows = [json.loads(line)["embedding"] for line in shown.out.splitlines()]
    np.testing.assert_array_equal(np.array(rows, np.float32), vectors)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_embed_in_chunks(
    cli: Cli,
    model: Path,
    tmp_path: Path,
    vectors: Any,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
) -> None:
    """The file has more text than is held at a time, and a last line without an end."""
    monkeypatch.setattr("packhorse.cli.lines._CHUNK_BYTES", 8)
    path, out = tmp_path / "lines.txt", tmp_path / "v.npy"
    path.write_bytes(ending.join(LINES * 3).encode())
    assert cli("embed", model, path, "-o", out, "--max-tokens", "130").status == 0
    np.testing.assert_array_equal(np.load(out), np.concatenate([vectors] * 3))


def test_embed_nothing(cli: Cli, model: Path, tmp_path: Path) -> None:
    assert cli("embed", model, "-", "-o", tmp_path / "v.npy").status == 0
    assert np.load(tmp_path / "v.npy").shape == (0, 32)
    assert cli("embed", model, "-") == (0, "", "")


def test_embed_max_length(cli: Cli, model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    assert cli("embed", model, text, "-o", out, "--max-length", "10").status == 0
    np.testing.assert_array_equal(np.load(out), expected(model, LINES, length=10))
    assert failed(cli("embed", model, text, "--max-length", "121"), "121", "120")
    assert failed(cli("embed", model, text, "--max-length", "2"), "2 special tokens")
    assert failed(cli("embed", model, text, "--max-tokens", "100"), "120", "max_tokens 100")


def test_embed_bad_text_keeps_what_was_done(
    cli: Cli, model: Path, tmp_path: Path, vectors: Any
) -> None:
    path, out = tmp_path / "lines.txt", tmp_path / "v.npy"
    path.write_bytes(f"{LINES[0]}\n{LINES[1]}\n".encode() + b"w5 \xff\n")
    assert failed(cli("embed", model, path, "-o", out), "lines.txt, line 3: not UTF-8")
    np.testing.assert_array_equal(np.load(out), vectors[:2])


def test_embed_errors(cli: Cli, model: Path, text: Path, tmp_path: Path) -> None:
    assert failed(cli("embed", model, tmp_path / "none.txt"), "none.txt")
    assert failed(cli("embed", model, tmp_path), str(tmp_path))
    assert failed(cli("embed", BERT, text), "no tokenizer.json")
    assert failed(cli("embed", model, text, "--format", "npy"), "-o")
    assert failed(cli("embed", model, text, "--format", "csv"), "'csv'", "npy, jsonl")
    assert failed(cli("embed", model, text, "--dtype", "int3"), "int3")
    assert failed(cli("embed", model, text, "-o", tmp_path / "no" / "v.npy"), "v.npy")
    convert(BERT, tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").write_text("{}")
    assert failed(cli("embed", tmp_path / "broken", text), "tokenizer.json")


def test_embed_options(cli: Cli, model: Path, text: Path, tmp_path: Path, vectors: Any) -> None:
    out = tmp_path / "v.npy"
    options = ("--truncate-dim", "9", "--output-dtype", "ubinary")
    assert cli("embed", model, text, "-o", out, *options).status == 0
    np.testing.assert_array_equal(np.load(out), np.packbits(vectors[:, :9] > 0, axis=1))
    assert cli("embed", model, text, "-o", out, "--output-dtype", "float16").status == 0
    np.testing.assert_array_equal(np.load(out), vectors.astype(np.float16))
    shown = cli("embed", model, "-", "--output-dtype", "binary", "--prompt", "w7 ", stdin=b"w8\n")
    (vector,) = expected(model, ["w7 w8"])
    bits = np.packbits(vector > 0).astype(int) - 128
    assert json.loads(shown.out) == {"index": 0, "embedding": bits.tolist()}
    assert failed(cli("embed", model, text, "--prompt-name", "q"), "'q' is not one of")
    assert failed(cli("embed", model, text, "--truncate-dim", "33"), "between 1 and 32")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("v.npz", (), ".npz archives are not written: name it .npy"),
        ("v.npz", ("--format", "npy"), "archives are not written"),
        ("v.npy", ("--format", "jsonl"), "the name says npy, --format says jsonl"),
        ("v.NDJSON", ("--format", "npy"), "the name says jsonl, --format says npy"),
        ("v.csv", (), "give --format"),
    ],
)
def test_embed_refuses_names_that_mislead(
    cli: Cli, model: Path, text: Path, tmp_path: Path, name: str, options: Any, message: str
) -> None:
    assert failed(cli("embed", model, text, "-o", tmp_path / name, *options), name, message)
    assert not (tmp_path / name).exists()


def test_embed_in_bytes_by_a_sample(cli: Cli, model: Path, text: Path, tmp_path: Path) -> None:
    """The ranges are those of embeddings of other texts, whatever the lines."""
    many, sample, out = tmp_path / "many.txt", tmp_path / "sample.npy", tmp_path / "v.npy"
    many.write_text("".join(f"w{3 + i % 90} w{5 + i * 7 % 90}\n" for i in range(100)))
    assert cli("embed", model, many, "-o", sample).status == 0
    rows, embeddings = np.load(sample), expected(model, LINES)
    asked = ("embed", model, text, "-o", out, "--output-dtype")
    for dtype in ("int8", "uint8"):
        assert cli(*asked, dtype, "--calibration", sample).status == 0
        found = np.load(out)
        low, high = rows.min(axis=0), rows.max(axis=0)
        steps = np.floor((embeddings - low) / ((high - low) / np.float32(255)))
        levels = np.clip(steps, 0, 255).astype(int) - (128 if dtype == "int8" else 0)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, levels)
    assert failed(cli(*asked, "int8"), "int8 needs --calibration", "100 or more texts")
    assert failed(cli(*asked, "binary", "--calibration", sample), "--calibration has no effect")
    np.save(sample, rows[:99])
    assert failed(cli(*asked, "int8", "--calibration", sample), "99 embeddings", "at least 100")
    np.save(sample, rows[0])
    assert failed(cli(*asked, "int8", "--calibration", sample), "float32[32]", "[texts, dims]")
    np.save(sample, np.repeat(rows, 2, axis=1))
    assert failed(cli(*asked, "int8", "--calibration", sample), "(2, 64)", "(2, 32)")
    sample.write_text("no array")
    assert failed(cli(*asked, "int8", "--calibration", sample), "sample.npy")


def test_options_of_the_cpu_are_refused_elsewhere(cli: Cli, model: Path, text: Path) -> None:
    cuda = ("--device", "cuda")
    assert failed(cli("embed", model, text, "--threads", "2", *cuda), "--threads", "cuda")
    assert failed(cli("bench", model, "--pin-threads", *cuda), "--pin-threads", "cuda")


# --- bench and the rest


def test_bench(cli: Cli, model: Path) -> None:
    shown = cli("bench", model, "--seconds", "0.1", "--sequences", "4", "--max-length", "20")
    assert shown.status == 0
    assert "4 sequences, 1 to 20 tokens" in shown.out
    assert "tokens/s" in shown.out
    assert failed(cli("bench", model, "--max-length", "500"), "500", "120")
    explained = cli("bench", model, "--seconds", "0.1", "--sequences", "2", "--explain")
    assert "cpu has no choice of kernels" in explained.out
    assert failed(cli("bench", model, "--attention-algorithm", "short"), "'short': the CPU has one")


COMMANDS = (
    *("embed", "score", "classify", "answer", "fill-mask", "embed-sparse", "embed-tokens"),
    *("inspect", "convert", "evaluate", "bench"),
)


def test_help_and_usage(cli: Cli) -> None:
    assert cli("--version").out == f"packhorse {packhorse.__version__}\n"
    commands = cli("-h").out
    for command in COMMANDS:
        assert command in commands
        assert cli(command, "-h") == cli(command, "--help")
        assert cli(command, "-h").status == 0
        assert cli(command).status == 2
    assert cli("fly").status == 2


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_cli_extra(cli: Cli, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith(("packhorse.cli.", "typer", "rich"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert failed(cli("--help"), package, "pip install typer rich (or", "'.[cli]'", status=2)


def test_without_tokenizers(
    cli: Cli, model: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert failed(cli("embed", model, text), "tokenizers", "pip install", status=2)


def test_full_disk(cli: Cli, model: Path, text: Path) -> None:
    shown = cli("embed", model, text, "-o", "/dev/full")
    assert failed(shown, "No space left on device")


def test_interrupt(cli: Cli, model: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C: no traceback."""

    def embed(self: packhorse.TextModel, texts: list[str], **_: Any) -> Any:
        if texts:
            raise KeyboardInterrupt
        return np.empty((0, 32), np.float32)

    monkeypatch.setattr(packhorse.TextModel, "embed", embed)
    shown = cli("embed", model, text)
    assert shown.status == 130
    assert shown.out == ""
    assert "Traceback" not in shown.err


def test_broken_pipe(model: Path, tmp_path: Path) -> None:
    """`packhorse embed ... | head -n 1`: no noise, and it ends."""
    path = tmp_path / "lines.txt"
    path.write_text("w5\n" * 20000)
    command = [sys.executable, "-m", "packhorse.cli", "embed", str(model), str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["index"] == 0
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) != 0
