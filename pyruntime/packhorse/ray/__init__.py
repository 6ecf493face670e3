"""Packhorse on the machines of a Ray cluster (extra `ray`, docs/scale.md).

packhorse.ray.embed("documents/", "model-folder", output="vectors/")     # Parquet in, Parquet out
dataset.map_batches(packhorse.ray.Embedder, fn_constructor_kwargs={"model": "model-folder"}, ...)
images.map_batches(packhorse.ray.ImageEmbedder, fn_constructor_kwargs={"model": "folder"}, ...)
dataset.map_batches(packhorse.ray.Translator, fn_constructor_kwargs={"model": "folder"}, ...)

serve.run(packhorse.ray.deployment("model-folder", num_gpus=1, max_replicas=8).bind())

Ray and pyarrow are imported when something here is used.
"""

from packhorse.ray.embedder import Embedder
from packhorse.ray.embedding import Embedded, embed
from packhorse.ray.image_embedder import ImageEmbedder
from packhorse.ray.serving import deployment
from packhorse.ray.translator import Translator

__all__ = ["Embedded", "Embedder", "ImageEmbedder", "Translator", "deployment", "embed"]
