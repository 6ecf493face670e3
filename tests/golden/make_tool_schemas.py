"""Makes tool_schemas.json: the schemas that transformers makes of the functions of tool_cases.py.

pip install transformers>=5
python tests/golden/make_tool_schemas.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import transformers
from transformers.utils import get_json_schema

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python" / "support"))
from tool_cases import TOOLS  # noqa: E402


def main() -> None:
    schemas = {name: get_json_schema(tool) for name, tool in TOOLS.items()}
    found = {"transformers": transformers.__version__, "schemas": schemas}
    (HERE / "tool_schemas.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
