"""Runs the fuzzers one after the other and says what they did: executions, coverage, findings.

Usage: python tests/fuzz/run.py [--minutes N] [--room FOLDER] [--programs FOLDER] [NAMES]

`nox -s fuzz` builds the programs of clang (cpp_...) and has an environment with atheris. What a run
found is kept in ROOM/NAME: the corpus, from which the next run goes on, the log, and inputs that
crashed. Afterwards what the corpus reaches is counted in lines of source.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from seeds import SEEDS, write_seeds

HERE = Path(__file__).resolve().parent

# The sources that a program of clang fuzzes.
SOURCES = {
    "cpp_packed_tokens": ["packed_tokens.cc"],
    "cpp_safetensors": ["safetensors_header.cc", "json.cc"],
    "cpp_spec": [
        *("format1.cc", "format2.cc", "parse.cc", "parse_blocks.cc", "parse_heads.cc"),
        *("parse_quantized.cc", "parse_stem.cc", "json_fields.cc", "json.cc"),
    ],
}
REGRESSIONS = HERE / "regressions"


def command(name: str, programs: Path) -> list[str]:
    if name.startswith("cpp_"):
        return [str(programs / f"{name.removeprefix('cpp_')}_fuzz")]
    return [sys.executable, str(HERE / "readers_fuzz.py"), name]


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fuzz(name: str, room: Path, programs: Path, minutes: float) -> dict[str, object]:
    seeds, corpus = room / "seeds", room / "corpus"
    write_seeds(name, seeds)
    corpus.mkdir(exist_ok=True)
    folders = [str(corpus), str(seeds)]
    if (REGRESSIONS / name).is_dir():
        folders.append(str(REGRESSIONS / name))
    # The limit of a single input is of wall-clock time, on a machine that may be busy.
    options = [f"-max_total_time={round(minutes * 60)}", "-timeout=120", "-rss_limit_mb=3000"]
    options += [f"-artifact_prefix={room}/", "-print_final_stats=1", "-verbosity=1"]
    if name == "cpp_spec":
        options.append("-only_ascii=1")
    begin, used = datetime.datetime.now(), cpu_seconds()
    with (room / "log").open("w") as log:
        done = subprocess.run(
            [*command(name, programs), *options, *folders], stdout=log, stderr=log, cwd=room
        )
    seconds = (datetime.datetime.now() - begin).total_seconds()
    text = (room / "log").read_text(errors="replace")
    executions = re.findall(r"stat::number_of_executed_units: (\d+)", text) or re.findall(
        r"^#(\d+)\s", text, re.MULTILINE
    )
    edges = re.findall(r"cov: (\d+) ft: (\d+)", text)
    found = sorted(p.name for p in room.iterdir() if re.match(r"(crash|timeout|oom|leak)-", p.name))
    return {
        "name": name,
        "date": f"{begin:%Y-%m-%d %H:%M}",
        "minutes": round(seconds / 60, 1),
        "cpu_minutes": round((cpu_seconds() - used) / 60, 1),
        "executions": int(executions[-1]) if executions else 0,
        "edges": int(edges[-1][0]) if edges else 0,
        "features": int(edges[-1][1]) if edges else 0,
        "exit": done.returncode,
        "findings": found,
    }


def merge_for_coverage(room: Path, name: str) -> Path:
    """One folder of all inputs."""
    whole = room / "all"
    shutil.rmtree(whole, ignore_errors=True)
    whole.mkdir()
    for folder in (room / "seeds", room / "corpus", REGRESSIONS / name):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            shutil.copyfile(path, whole / f"{folder.name}-{path.name}")
    return whole


def find_tool(name: str) -> str | None:
    """A tool of LLVM, whose name may have the version at its end, as that of clang++."""
    version = re.search(r"-\d+$", os.environ.get("CLANG", ""))
    return shutil.which(name + (version.group() if version else "")) or shutil.which(name)


def coverage(name: str, room: Path, programs: Path) -> str:
    """The lines of source that the inputs reach, as text; or why they could not be counted."""
    try:
        return count_lines(name, room, programs)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"not counted: {error!s:.200}"


def count_lines(name: str, room: Path, programs: Path) -> str:
    whole = merge_for_coverage(room, name)
    if not name.startswith("cpp_"):
        counted = subprocess.run(
            [*command(name, programs), "--lines", str(whole)], capture_output=True, text=True
        )
        return counted.stdout.strip() or counted.stderr.strip()[-200:]
    program = command(name, programs.with_name(programs.name + "-coverage"))[0]
    cov, merge = (find_tool(tool) for tool in ("llvm-cov", "llvm-profdata"))
    if cov is None or merge is None or not Path(program).is_file():
        return "not counted: no llvm-cov, or no programs built with COVERAGE=ON"
    raw, data = room / "raw.profile", room / "profile"
    subprocess.run(
        [program, "-runs=0", str(whole)], env={"LLVM_PROFILE_FILE": str(raw)}, capture_output=True
    )
    subprocess.run([merge, "merge", "-sparse", str(raw), "-o", str(data)], check=True)
    said = subprocess.run(
        [cov, "export", "-summary-only", f"-instr-profile={data}", program],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = reached = 0
    for file in json.loads(said)["data"][0]["files"]:
        if Path(file["filename"]).name in SOURCES[name]:
            lines += file["summary"]["lines"]["count"]
            reached += file["summary"]["lines"]["covered"]
    return f"{reached} of {lines} lines ({reached / lines:.0%})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=", ".join(SEEDS))
    parser.add_argument("--minutes", type=float, default=30, help="of each (30)")
    parser.add_argument("--room", type=Path, default=Path("build/fuzz-room"))
    parser.add_argument("--programs", type=Path, default=Path("build/fuzz-cpp"))
    chosen = parser.parse_args()
    failed = False
    for name in chosen.names or list(SEEDS):
        room = (chosen.room / name).resolve()
        room.mkdir(parents=True, exist_ok=True)
        result = fuzz(name, room, chosen.programs.resolve(), chosen.minutes)
        result["lines"] = coverage(name, room, chosen.programs.resolve())
        with (chosen.room / "results.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)
        failed |= bool(result["findings"]) or result["exit"] != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
