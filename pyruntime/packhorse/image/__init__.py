"""Images in, vectors, labels and similarities with texts out."""

from packhorse.image.model import ImageModel

__all__ = ["ImageModel"]
