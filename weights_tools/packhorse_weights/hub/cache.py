"""Finds models by name in the cache of Hugging Face, or downloads them into it.

The cache has a folder models--ORG--NAME for each repository. It holds refs/REVISION (a file with
the commit of a branch or tag), snapshots/COMMIT (the files) and .no_exist/COMMIT (empty files for
names that the repository is known not to have). Source: the documentation of huggingface_hub,
"Understand caching".
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from packhorse_weights.extras import install_hint
from packhorse_weights.files import read_bytes
from packhorse_weights.hub.files import choose_files, has_tokenizer, missing_part

_LOGGER = logging.getLogger("packhorse.hub")
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?:{_PART}/)?{_PART}")
# Repositories of the time before names had an organisation.
_WITHOUT_ORGANISATION = re.compile(
    r"albert-(?:base|x{0,2}large)-v[12]|camembert-base|ctrl|distilgpt2|distilroberta-base"
    r"|bert-(?:base|large)(?:-multilingual|-german|-german-dbmdz)?-(?:un)?cased"
    r"(?:-whole-word-masking)?(?:-finetuned-(?:squad|mrpc))?|bert-base-chinese"
    r"|distilbert-base(?:-multilingual|-german)?-(?:un)?cased"
    r"(?:-distilled-squad|-finetuned-sst-2-english)?|gpt2(?:-medium|-large|-xl)?|openai-gpt"
    r"|(?:xlm-)?roberta-(?:base|large)(?:-openai-detector|-mnli|-finetuned-conll0[23]-[a-z]+)?"
    r"|t5-(?:small|base|large|3b|11b)|transfo-xl-wt103|xlm-[cm]lm-[a-z0-9-]+"
    r"|xlnet-(?:base|large)-cased",
    re.IGNORECASE,
)
# Organisations that sentence-transformers puts before names without one: encoders, rerankers.
_ORGANISATIONS = ("sentence-transformers", "cross-encoder")
_MODULES = "modules.json"
_TIMEOUT = 10.0  # in seconds, for a request for the names of files
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # the first one that is set decides


def cache_folder() -> Path:
    """The folder in which huggingface_hub keeps repositories, by the environment variables that it
    honours."""
    caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{caches}/huggingface")
    older = os.environ.get("HUGGINGFACE_HUB_CACHE", f"{home}/hub")
    return Path(os.path.expandvars(os.environ.get("HF_HUB_CACHE", older))).expanduser()


def _offline_by() -> str | None:
    """The environment variable that forbids downloads, or None if they are allowed."""
    name = next((name for name in _OFFLINE if os.environ.get(name)), None)
    on = name is not None and os.environ[name].upper() in ("1", "ON", "YES", "TRUE")
    return name if on else None


def _hub() -> Any:
    """The package huggingface_hub if downloads are possible, otherwise None."""
    if _offline_by() is not None:
        return None
    try:
        return importlib.import_module("huggingface_hub")
    except ModuleNotFoundError:
        return None


@dataclass(frozen=True)
class _Entry:
    """One revision of one repository in a cache."""

    cache: Path
    name: str
    revision: str | None  # a branch, a tag or a commit; None: main

    @property
    def folder(self) -> Path:
        return self.cache / f"models--{self.name.replace('/', '--')}"

    def commit(self) -> str:
        """The commit of the revision: the one in its file of refs, otherwise the revision
        itself."""
        revision = self.revision or "main"
        reference = self.folder / "refs" / revision.lstrip("/")
        if ".." not in reference.parts and reference.is_file():
            return read_bytes(reference, 1024).decode("utf-8", "replace").strip()
        return revision

    def snapshot(self) -> Path | None:
        commit = self.commit()
        if not re.fullmatch(r"[\w.-]+", commit) or commit.strip(".") == "":
            return None
        snapshot = self.folder / "snapshots" / commit
        return snapshot if snapshot.is_dir() else None

    def lacks(self) -> str | None:
        """Says what is missing for a session, or returns None if nothing is."""
        snapshot = self.snapshot()
        if snapshot is None:
            if not self.folder.is_dir():
                return f"{self.folder} is not there"
            refs, snapshots = self.folder / "refs", self.folder / "snapshots"
            found = [str(one.relative_to(refs)) for one in refs.rglob("*") if one.is_file()]
            there = [one for one in found if replace(self, revision=one).snapshot() is not None]
            there += [one.name for one in snapshots.glob("*")]
            known = ", ".join(sorted(there)) or "none"
            revision, commit = self.revision or "main", self.commit()
            lost = f" (the commit {commit!r:.60}, which is not there)" if commit != revision else ""
            return f"{self.folder} has no revision {revision!r}{lost}, only: {known}"
        missing = missing_part(snapshot)
        return None if missing is None else f"{snapshot} is incomplete: it lacks {missing}"

    def is_certain(self, snapshot: Path) -> bool:
        """True if the cache has a tokenizer and says whether the repository has modules on the
        model.

        After a download through transformers there is no modules.json even if the repository has
        one, and the pooling would be a different one.
        """
        absent = self.folder / ".no_exist" / snapshot.name / _MODULES
        known = (snapshot / _MODULES).is_file() or absent.is_file()
        return (known or (snapshot / "packhorse.json").is_file()) and has_tokenizer(snapshot)

    def files(self, hub: Any) -> list[str]:
        """The names of the repository's files. This is one request, which is not repeated if there
        is no network."""
        found = hub.model_info(self.name, revision=self.revision, timeout=_TIMEOUT).siblings
        return [file.rfilename for file in found]

    def download(self, hub: Any, files: list[str]) -> Path:
        """Downloads those of `files` that are needed and not in the cache, with the progress bar of
        `hub`."""
        revision = self.revision or "main"
        _LOGGER.info("downloading %s at %s to %s", self.name, revision, self.cache)
        path = hub.snapshot_download(
            self.name,
            revision=self.revision,
            cache_dir=str(self.cache),
            allow_patterns=choose_files(files),
        )
        return Path(path)

    def complete(self, hub: Any, snapshot: Path) -> None:
        """Downloads what `is_certain` finds missing. If that fails, nothing happens: a session can
        do without."""
        commit = replace(self, revision=snapshot.name)
        try:
            files = commit.files(hub)
            if _MODULES in files or not has_tokenizer(snapshot):
                commit.download(hub, files)
            else:  # has the cache record that there is no such file
                hub.hf_hub_download(
                    self.name, _MODULES, revision=snapshot.name, cache_dir=str(self.cache)
                )
        except Exception:  # the class of the error depends on the version and its HTTP library
            return

    @property
    def command(self) -> str:
        """The command that downloads the revision; it is part of huggingface_hub."""
        revision = f" --revision {self.revision}" if self.revision else ""
        return f"hf download {self.name}{revision}"

    def advice(self) -> str:
        """Says what to run if nothing may be, or can be, downloaded from here."""
        if (variable := _offline_by()) is not None:
            return (
                f"{variable} is set, so it was not downloaded; where there is a network: "
                f"{variable}=0 {self.command}"
            )
        return (
            "It is downloaded where huggingface_hub is installed: "
            f"{install_hint('hub')}; or elsewhere: {self.command} --local-dir "
            f"{self.name.rpartition('/')[2]}, and load that folder"
        )


def _entry_named(name: str, revision: str | None) -> _Entry:
    """The repository that a name stands for. One without an organisation is of those that never had
    one, or as sentence-transformers reads it; what the cache has goes first."""
    cache = cache_folder()
    if "/" in name or _WITHOUT_ORGANISATION.fullmatch(name):
        return _Entry(cache, name, revision)
    longer = [f"{organisation}/{name}" for organisation in _ORGANISATIONS]
    entries = [_Entry(cache, one, revision) for one in (name, *longer)]
    return next((one for one in entries if one.folder.is_dir()), entries[1])


def _entry_at(path: Path, revision: str | None) -> _Entry | None:
    """The repository whose folder in a cache `path` is, or None for other folders."""
    kind, _, name = path.resolve().name.partition("--")
    if kind != "models" or not (path / "snapshots").is_dir():
        return None
    return _Entry(path.resolve().parent, name.replace("--", "/", 1), revision)


def _find(entry: _Entry, wanted: str) -> Path:
    """Finds the folder of a revision. `wanted` says in messages what the caller asked for, and why
    that is not a folder itself."""
    lacks, hub = entry.lacks(), _hub()
    snapshot = entry.snapshot()
    if lacks is None and snapshot is not None:
        if hub is not None and not entry.is_certain(snapshot):
            entry.complete(hub, snapshot)
        return snapshot
    if hub is None:
        raise FileNotFoundError(f"{wanted}; in the Hugging Face cache, {lacks}. {entry.advice()}")
    try:
        return entry.download(hub, entry.files(hub))
    except Exception as error:
        reason = " ".join(str(error).split())
        raise FileNotFoundError(
            f"{wanted}; in the Hugging Face cache, {lacks}; the download failed: "
            f"{type(error).__name__}: {reason:.500}. To try it by hand: {entry.command}"
        ) from error


def find_model(path_or_name: str | PathLike[str], revision: str | None = None) -> Path:
    """The folder (or weight file) of a model.

    path_or_name  an existing path, or the folder of a repository in the cache of Hugging Face
                  (models--ORG--NAME). Any other name, such as "org/model", is looked up in that
                  cache; what is not there is downloaded through huggingface_hub, if that is
                  installed and HF_HUB_OFFLINE is not set. "all-MiniLM-L6-v2", and other names that
                  have no organisation, mean those of sentence-transformers, as there
    revision      a branch, a tag or a whole commit hash; None: the branch main

    The cache is used as it is, without asking whether the hub has a newer version. Raises
    FileNotFoundError, saying where the model was looked for and what to run, and ValueError if a
    revision is given for a path that has none.
    """
    name = os.fspath(path_or_name)
    if name == "":
        raise FileNotFoundError("'': expected a model's folder, file or name, found an empty one")
    path = Path(name)
    if path.exists():
        entry = _entry_at(path, revision)
        if entry is not None:
            return _find(entry, f"{path}: no model")
        if revision is not None:
            raise ValueError(
                f"revision {revision!r:.80}: {path} is a path that has none; expected the name of "
                "a repository or its folder in the Hugging Face cache"
            )
        return path
    if not _NAME.fullmatch(name) or "--" in name or ".." in name:
        raise FileNotFoundError(f"{path}: no such file or folder")
    return _find(_entry_named(name, revision), f"{name}: no such file or folder")
