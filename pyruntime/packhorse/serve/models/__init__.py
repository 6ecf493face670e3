"""The models of a server: loaded, queued for, and run."""
