"""Images in, vectors, labels and similarities with texts out (`ImageModel`), and images made the
input of such models (with the extra `image`).

    processor = packhorse.image.ImageProcessor.from_folder("clip-vit-base-patch32")
    pixels = processor(["a.jpg", open("b.png", "rb").read()])      # float32 [2, 3, 224, 224]
    patches = processor.patches(["a.jpg", "b.webp"], patch_size=32)  # packed, with cu_seqlens

Pixels are those of the image processors of transformers 5, bit for bit; `backend` says of which of
its two backends (see `ImageProcessor`).
"""

from packhorse.image.decoding import MAX_PIXELS, ImageSource, decode
from packhorse.image.model import ImageModel
from packhorse.image.pages import PageModel
from packhorse.image.pixels import resize
from packhorse.image.processor import ImageProcessor, Patches
from packhorse.image.settings import ImageSettings, PatchLimit

__all__ = [
    "MAX_PIXELS",
    "ImageModel",
    "ImageProcessor",
    "ImageSettings",
    "ImageSource",
    "PageModel",
    "PatchLimit",
    "Patches",
    "decode",
    "resize",
]
