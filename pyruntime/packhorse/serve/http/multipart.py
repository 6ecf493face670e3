"""Bodies of forms with files (RFC 7578)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from packhorse.serve.errors import ServeError

_MOST_PARTS = 100
_MOST_HEADER = 8192  # bytes of the headers of a part
_BOUNDARY = re.compile(r'boundary=(?:"([^"\r\n]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_NAME = re.compile(rb'(?:^|[;\s])name="((?:[^"\\\r\n]|\\.)*)"', re.IGNORECASE)


@dataclass(frozen=True)
class Form:
    """texts: the values of each name, in order. files: bytes of each name's first file."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


def read_form(body: bytes, content_type: str) -> Form:
    """Reads multipart/form-data. Raises ServeError for another type and for a body that is cut off
    or has too many parts."""
    found = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or found is None:
        raise ServeError(
            "malformed",
            f"the content type is {content_type!r:.80}, expected multipart/form-data with a "
            "boundary",
        )
    line = b"--" + (found[1] or found[2]).encode("latin-1")
    if body.startswith(line):
        body = b"\r\n" + body
    pieces = body.split(b"\r\n" + line, _MOST_PARTS + 2)
    if len(pieces) > _MOST_PARTS + 2:
        raise ServeError("malformed", f"the form has more than {_MOST_PARTS} parts")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise ServeError("malformed", "the form does not end with its boundary")
    form = Form()
    for piece in pieces[1:-1]:
        head, blank, content = piece.partition(b"\r\n\r\n")
        if not blank or len(head) > _MOST_HEADER:
            raise ServeError("malformed", "a part of the form has no headers that end")
        headers = [one.strip() for one in head.split(b"\r\n")]
        said = next(
            (one for one in headers if one.lower().startswith(b"content-disposition:")), b""
        )
        name = _NAME.search(said)
        if name is None:
            raise ServeError("malformed", "a part of the form has no name")
        key = name[1].decode("utf-8", "replace")
        if re.search(rb"filename\*?=", said, re.IGNORECASE):
            form.files.setdefault(key, content)
            continue
        try:
            form.texts.setdefault(key, []).append(content.decode())
        except UnicodeDecodeError:
            raise ServeError(
                "malformed",
                f"{key!r:.80} is not UTF-8, and has no filename, as a file has",
                parameter=key,
            ) from None
    return form
