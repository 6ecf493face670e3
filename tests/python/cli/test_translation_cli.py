"""`packhorse translate` and `packhorse summarize`, beside what `TextModel` gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import GOLDEN
from command_line import Cli, failed
from packhorse import TextModel
from text_to_text_models import make_folder

pytest.importorskip("typer")
TEXTS = ["the cat sat on the mat", "", "Hello world. It's 9, or 10! " * 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "m2m", "m2m-100")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[TextModel]:
    with TextModel.load(folder, kv_tokens=4096) as found:
        yield found


def test_with_an_adapter(cli: Cli, folder: Path, model: TextModel, tmp_path: Path) -> None:
    adapter = GOLDEN / "text_to_text_adapters" / "m2m-100"
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    options = ("--from", "de", "--to", "fr", "--kv-tokens", "4096", "--adapter", adapter)
    with TextModel.load(folder, kv_tokens=4096, max_adapters=1) as adapted:
        adapted.generation_session.add_adapter("mine", adapter)
        expected = adapted.translate(TEXTS, source="de", target="fr", adapter="mine")
    assert expected != model.translate(TEXTS, source="de", target="fr")
    shown = cli("translate", folder, file, *options)
    assert shown.out.splitlines() == [" ".join(one.splitlines()) for one in expected]


def test_translates_each_line(cli: Cli, folder: Path, model: TextModel, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    options = ("--from", "de", "--to", "fr", "--num-beams", "2", "--kv-tokens", "4096")
    shown = cli("translate", folder, file, *options)
    expected = model.translate(TEXTS, source="de", target="fr", num_beams=2)
    assert shown.out.splitlines() == [" ".join(one.splitlines()) for one in expected]
    shown = cli("translate", folder, file, *options, "--whole", "--split", "sentences")
    whole = "\n".join(TEXTS)
    expected = model.translate(whole, source="de", target="fr", num_beams=2, split="sentences")
    assert shown.out == expected + "\n"


def test_summarizes_each_line(cli: Cli, folder: Path, model: TextModel, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    shown = cli("summarize", folder, file, "--max-new-tokens", "5", "--kv-tokens", "4096")
    expected = model.summarize(TEXTS, max_new_tokens=5)
    assert shown.out.splitlines() == [" ".join(one.splitlines()) for one in expected]


def test_refused(cli: Cli, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("a\n")
    outcome = cli("translate", folder, file, "--to", "xx", "--kv-tokens", "512")
    assert failed(outcome, "target is 'xx', which is no language")


def test_generates_what_the_prompt_is_no_part_of(cli: Cli, folder: Path, model: TextModel) -> None:
    """A decoder does not go on with its source; beams are printed when they have ended."""
    shown = cli("generate", folder, TEXTS[0], "--kv-tokens", "4096")
    assert shown.out == model.generate(TEXTS[0]) + "\n"
    shown = cli("generate", folder, TEXTS[0], "--kv-tokens", "4096", "--num-beams", "3")
    assert shown.out == model.generate(TEXTS[0], num_beams=3) + "\n"


def test_a_prompt_that_is_too_long_is_named_by_its_line(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("the cat\n\n" + TEXTS[0] * 40 + "\n")
    for command in (
        ("generate", folder, "--file", file),
        ("translate", folder, file, "--split", "never"),
    ):
        assert failed(cli(*command, "--kv-tokens", "4096"), "line 3: the source has")
