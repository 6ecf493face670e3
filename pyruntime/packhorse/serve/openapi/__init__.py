"""The description of the server's interface: OpenAPI 3.1, written here, and true by test."""

from packhorse.serve.openapi.document import document

__all__ = ["document"]
