"""Logs, metrics and traces of a server."""
