"""A server of text models, by the protocols that clients already speak. Needs the extra `serve`.

`packhorse serve MODEL` runs it; `create_app` is its ASGI application, for another server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packhorse.serve.settings import ModelSettings, Settings

if TYPE_CHECKING:
    from packhorse.serve.app import create_app as create_app
    from packhorse.serve.server import run as run

__all__ = ["ModelSettings", "Settings", "create_app", "run"]

if not TYPE_CHECKING:  # type checkers would accept any name if they saw this

    def __getattr__(name: str) -> object:
        # Late, so that the settings can be read without the packages that serve.
        if name == "create_app":
            from packhorse.serve.app import create_app

            return create_app
        if name == "run":
            from packhorse.serve.server import run

            return run
        raise AttributeError(f"module 'packhorse.serve' has no attribute {name!r}")
