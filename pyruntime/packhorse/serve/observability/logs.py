"""The log of a server: a line for each request and event, as JSON or as text, on stderr."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from packhorse.serve.observability.log_writer import LogWriter

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
    """A line for people, with the fields that say something, in the local time."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        fields = getattr(record, "fields", {}).items()
        rest = "".join(f" {_shown(*field)}" for field in fields if field[1] not in (None, "", []))
        line = f"{stamp} {record.levelname.lower():7} {record.getMessage()}{rest}"
        if record.exc_info:
            line += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return line


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes')}={value / 1e6:,.1f}MB"
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{name}={text!r}" if " " in text else f"{name}={text}"


def _time(seconds: float) -> str:
    whole, part = divmod(seconds, 1)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{stamp}.{int(part * 1000):03}Z"


def log(level: int, message: str, raised: BaseException | None = None, /, **fields: Any) -> None:
    """A line with fields, and the traceback of what was raised."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, message, exc_info=raised, extra={"fields": fields})


class _Handler(logging.Handler):
    """Hands lines to the thread that writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = LogWriter(self._dropped)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:
            line = f"a line of {record.name} could not be written: {error!r}"
        self.writer.put(line)

    def _dropped(self, count: int) -> str:
        level = logging.WARNING
        record = LOGGER.makeRecord(
            LOGGER.name, level, "", 0, "lines were dropped that nobody read", (), None
        )
        record.fields = {"lines": count}
        return self.format(record)


_handlers: list[_Handler] = []  # the process has none or one


def dropped_lines() -> int:
    """Lines that were not written, since whoever reads the log did not take them."""
    return sum(one.writer.dropped for one in _handlers)


@contextmanager
def to_stderr(level: str, style: str) -> Iterator[None]:
    """Has this process write the log to stderr, and with it what other packages have to say.

    style  "text", "json", or "auto": text where stderr is a terminal
    """
    handler = _Handler()
    if style == "auto":
        style = "text" if sys.stderr is not None and sys.stderr.isatty() else "json"
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    root = logging.getLogger()
    before = root.handlers
    root.handlers = [handler]
    _handlers.append(handler)
    logging.captureWarnings(True)
    LOGGER.setLevel(level.upper())
    logging.getLogger("uvicorn.error").setLevel("WARNING" if level == "info" else level.upper())
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers = before
        _handlers.remove(handler)
        handler.writer.close()
