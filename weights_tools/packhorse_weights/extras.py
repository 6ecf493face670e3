"""Optional packages, and the message when one is missing."""

from __future__ import annotations

# An extra of pyproject.toml -> its packages.
_EXTRAS = {
    "text": ("tokenizers", "jinja2"),
    "structured": ("llguidance",),
    "cli": ("typer", "rich"),
    "hub": ("huggingface_hub",),
    "audio": ("soundfile", "soxr"),
    "vad": ("onnxruntime",),
    "image": ("pillow",),
    "serve": ("starlette", "uvicorn", "uvloop", "httptools", "orjson", "prometheus-client"),
    "tracing": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
    "ray": ("'ray[data,serve]'", "pyarrow"),
}


def install_hint(extra: str) -> str:
    """The commands that install the packages of an extra, whatever way Packhorse itself was
    installed."""
    packages = " ".join(_EXTRAS[extra])
    return f"pip install {packages} (or, in a clone of Packhorse: pip install '.[{extra}]')"


def missing_package(extra: str, package: str, what: str) -> ModuleNotFoundError:
    """The error to raise if `what` needs `package` of an extra."""
    return ModuleNotFoundError(
        f"{what} needs the package {package} (extra {extra!r}), which is not installed: "
        f"{install_hint(extra)}",
        name=package,
    )
