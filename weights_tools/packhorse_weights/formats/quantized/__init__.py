"""Folders whose weights other tools quantised."""
