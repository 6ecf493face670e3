"""Random requests to `packhorse serve`, made by schemathesis from the server's own description of
its interface (/openapi.json). No answer may be an error of the server, or one that the description
does not have; and afterwards the server still serves.

Usage: python tests/fuzz_serve.py [SECONDS]    (`make fuzz-serve`; needs schemathesis)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "python"))
from serve_room import make_models, serving, settings_for

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


def main() -> int:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    with tempfile.TemporaryDirectory() as folder:
        models = [f"{name}={path}" for name, path in make_models(Path(folder)).items()]
        with serving(settings_for(*models, payload_limit=1_000_000)) as (client, _):
            command = [sys.executable, "-m", "schemathesis.cli", "run"]
            command += [f"http://127.0.0.1:{client.port}/openapi.json"]
            command += ["--checks", ",".join(CHECKS), "--max-time", str(seconds)]
            command += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure"]
            command += ["--generation-database", "none", "--seed", "1", "--warnings", "off"]
            command += ["--suppress-health-check", "all", "--request-timeout", "30"]
            found = subprocess.run(command, timeout=seconds * 2 + 60, cwd=folder).returncode
            assert client.get("/health").status == 200
            for model in client.get("/models").json:
                assert model["queue_requests"] == 0
    return found


if __name__ == "__main__":
    sys.exit(main())
