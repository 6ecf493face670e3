"""The only error class of this package."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read, is not valid, or asks for something that is not supported.

    The message names the file or tensor, what was found and what was expected.
    """
