"""The log of a server: a line for each request and event, as JSON or as text, on stderr."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from typing import Any

import orjson

LOGGER = logging.getLogger("packhorse.serve")


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, message, and the fields of `log`."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return orjson.dumps(fields, default=str).decode()


class TextLines(logging.Formatter):
    """The same for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        rest = "".join(f" {name}={value}" for name, value in fields.items())
        line = f"{_time(record.created)} {record.levelname.lower():7} {record.getMessage()}{rest}"
        if record.exc_info:
            line += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return line


def _time(seconds: float) -> str:
    whole, part = divmod(seconds, 1)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{stamp}.{int(part * 1000):03}Z"


def log(level: int, message: str, raised: BaseException | None = None, /, **fields: Any) -> None:
    """A line with fields, and the traceback of what was raised."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, message, exc_info=raised, extra={"fields": fields})


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what `sys.stderr` is when it writes."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def set_up(level: str, style: str) -> None:
    """Has this process write the log to stderr, and what uvicorn has to say with it."""
    handler = _Stderr()
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    for name in ("packhorse.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    if level == "info":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
