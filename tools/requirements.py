"""Print requirements that pyproject.toml states, one a line and without spaces, as words for the
command line of pip, so that nothing states them twice.

usage: requirements.py GROUP...    GROUP: "build", "project", or the name of an extra
"""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib


def main() -> None:
    path = Path(__file__).parents[1] / "pyproject.toml"
    settings = tomllib.loads(path.read_text(encoding="utf-8"))
    groups = {
        "build": settings["build-system"]["requires"],
        "project": settings["project"]["dependencies"],
        **settings["project"]["optional-dependencies"],
    }
    for group in sys.argv[1:]:
        print("\n".join(requirement.replace(" ", "") for requirement in groups[group]))


if __name__ == "__main__":
    main()
