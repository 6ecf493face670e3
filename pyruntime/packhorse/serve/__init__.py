"""A server of text models, by the protocols that clients already speak. Needs the extra `serve`.

`packhorse serve MODEL` runs it; `create_app` is its ASGI application, for another server.
"""

from __future__ import annotations

from packhorse.serve.settings import ModelSettings, Settings

__all__ = ["ModelSettings", "Settings", "create_app", "run"]


def __getattr__(name: str) -> object:
    # Late, so that the settings can be read without the packages that serve.
    if name == "create_app":
        from packhorse.serve.app import create_app

        return create_app
    if name == "run":
        from packhorse.serve.server import run

        return run
    raise AttributeError(f"module 'packhorse.serve' has no attribute {name!r}")
