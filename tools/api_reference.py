"""Makes the API reference from docstrings: a page of HTML for each module.

    python tools/api_reference.py [FOLDER]      build/docs unless said otherwise

The first page is index.html. Needs packhorse installed (or on PYTHONPATH) and the extra `docs`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

ROOT = Path(__file__).parents[1]
TEMPLATES = Path(__file__).with_suffix("")
MODULES = (
    "packhorse",
    "packhorse.ops",
    "packhorse.text",
    "packhorse.image",
    "packhorse.evaluation",
    "packhorse.ray",
    "packhorse_weights",
)


def public_names(module: ModuleType) -> list[str]:
    """The names that a module lists in __all__, otherwise those that it defines."""
    defined = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return list(getattr(module, "__all__", defined))


def is_own(member: object) -> bool:
    """True if a member of a class is a method or property that the package defines."""
    function = member.fget if isinstance(member, property) else member
    return (getattr(function, "__module__", None) or "").startswith("packhorse")


def undocumented() -> list[str]:
    """Public names, and public methods of public classes, without a docstring of their own."""
    found = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in public_names(module):
            value = getattr(module, name)
            if not callable(value) or get_origin(value) is not None:  # such as a type alias
                continue
            if not (value.__doc__ or "").strip():
                found.append(f"{module_name}.{name}")
            if inspect.isclass(value):
                found += [
                    f"{module_name}.{name}.{method}"
                    for method, member in inspect.getmembers(value)
                    if not method.startswith("_")
                    and is_own(member)
                    and not (member.__doc__ or "").strip()
                ]
    return found


class Written:
    """An annotation as written in the source. pdoc would replace it by what it stands for."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _as_written(annotation: Any) -> Any:
    return Written(annotation) if isinstance(annotation, str) else annotation


def keep_annotations() -> None:
    """Makes signatures of public functions and methods show annotations as they are written."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        values = [getattr(module, name) for name in public_names(module)]
        members = [one for value in values for _, one in inspect.getmembers(value)]
        for value in [*values, *members]:
            function = getattr(value, "__func__", value)  # the function of a class method
            if isinstance(value, property):
                function = value.fget
            if not inspect.isfunction(function) or not is_own(function):
                continue
            signature = inspect.signature(function)
            function.__annotations__ = {
                name: _as_written(one) for name, one in function.__annotations__.items()
            }
            function.__signature__ = signature.replace(  # type: ignore[attr-defined]
                parameters=[
                    one.replace(annotation=_as_written(one.annotation))
                    for one in signature.parameters.values()
                ],
                return_annotation=_as_written(signature.return_annotation),
            )


def write(folder: Path) -> None:
    """Writes the pages. Raises ValueError if something public has no docstring."""
    import pdoc

    missing = undocumented()
    if missing:
        raise ValueError(f"no docstring: {', '.join(missing)}")
    keep_annotations()
    pdoc.render.configure(template_directory=TEMPLATES, show_source=False, footer_text="")
    # Submodules are only where things are stored; users import them from the package.
    first, *others = MODULES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about annotations that only type checkers import
        pdoc.pdoc(first, rf"!{first}\..*", *others, r"!.+\._.*", output_directory=folder)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    write(folder)
    print(f"Written to {folder / 'index.html'}")


if __name__ == "__main__":
    main()
