"""The protocols: a file each, of functions that read a request and write its answer."""
