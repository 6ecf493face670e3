"""Packed batches of images: one array holds the patches of all images, another the grid of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, overload

import numpy as np
import numpy.typing as npt

from packhorse.device import ForeignArray, dtype_of, is_device_array, shape_of
from packhorse.named_errors import named
from packhorse.packing import Int32Array, as_int32

FloatMatrix = npt.NDArray[np.float32]
_FEW = 16  # images, for which each step of NumPy takes longer than all of Python's
_MOST = np.iinfo(np.int32).max
DTYPES = ("float32", "float16", "bfloat16")  # those of patches on a device

if TYPE_CHECKING:  # only type checkers need the default, which typing has since Python 3.13
    from typing_extensions import TypeVar

    FeatureArray = TypeVar("FeatureArray", default=FloatMatrix)
else:
    from typing import TypeVar

    FeatureArray = TypeVar("FeatureArray")

Foreign = TypeVar("Foreign", bound=ForeignArray)
Grids = npt.ArrayLike | Sequence[tuple[int, int]]


class PackedPatches(Generic[FeatureArray]):
    """One batch of images without padding, with `P` patches in `B` images:

    features  float32[P, k]  patches, image after image, row by row in each grid. The k elements of
                             a patch lie as in a convolution's weight: channel, row, column
    grids     int32[B, 2]    rows and columns of patches of each image

    Other float dtypes are converted. A session checks the contents when it runs them.

    `features` may also be a contiguous array on a CUDA device, of float32, float16 or bfloat16,
    that has `__dlpack__` or `__cuda_array_interface__`. It stays where it is, unchanged; `grids`
    are in host memory. To type checkers, `PackedPatches` is a batch in host memory,
    `PackedPatches[torch.Tensor]` one of a PyTorch tensor.
    """

    __slots__ = ("features", "grids", "on_device")

    features: FeatureArray
    grids: Int32Array

    @overload
    def __init__(
        self: PackedPatches[FloatMatrix],
        features: npt.NDArray[np.floating[Any]] | Sequence[Sequence[float]],
        grids: Grids,
    ) -> None: ...
    @overload
    def __init__(self: PackedPatches[Foreign], features: Foreign, grids: Grids) -> None: ...
    def __init__(self, features: Any, grids: Any) -> None:
        self.on_device = is_device_array(features)
        if self.on_device:
            dtype, shape = dtype_of(features), shape_of(features)
            if len(shape) != 2 or dtype not in DTYPES:
                raise ValueError(
                    f"features is {dtype}{list(shape)} on a device, expected "
                    f"{', '.join(DTYPES)} [patches, elements]"
                )
        else:
            array: Any = np.asarray(features)
            if array.ndim != 2 or not np.issubdtype(array.dtype, np.floating):
                raise ValueError(
                    f"features is {array.dtype}{list(array.shape)}, expected floats "
                    "[patches, elements]"
                )
            features = np.require(array, np.float32, ["C", "A"])
        self.features = features
        if is_device_array(grids):
            raise ValueError("grids lie on a device, expected host memory")
        sides: Any = np.asarray(grids)
        if sides.size == 0:
            sides = np.empty((0, 2), np.int32)
        if sides.ndim != 2 or sides.shape[1] != 2:
            raise ValueError(
                f"grids has shape {sides.shape}, expected rows and columns of each image: [B, 2]"
            )
        self.grids = as_int32("grids", sides.reshape(-1)).reshape(-1, 2)

    @property
    def num_patches(self) -> int:
        """P, the number of patches of all images."""
        return int(shape_of(self.features)[0])

    @property
    def num_images(self) -> int:
        """B, the number of images."""
        return int(self.grids.shape[0])

    def offsets(self, prefix: int) -> Int32Array:
        """int32[B + 1]: beginnings of images in a model that puts `prefix` rows before the patches
        of an image, unless it has none."""
        if len(self.grids) <= _FEW:
            end, few = 0, [0]
            for rows, columns in self.grids.tolist():
                end += rows * columns + prefix if rows * columns > 0 else 0
                few.append(end)
            if end <= _MOST:
                return np.array(few, np.int32)
        patches = self.grids.astype(np.int64).prod(axis=1)
        ends = np.cumsum(np.where(patches > 0, patches + prefix, 0))
        return as_int32("grids", np.concatenate([[0], ends]))

    def __getitem__(self, images: slice) -> PackedPatches[FeatureArray]:
        """The batch of some of the images, which follow each other."""
        first, last, step = images.indices(self.num_images)
        if step != 1:
            raise ValueError(f"images are taken in order, not in steps of {step}")
        if (first, last) == (0, self.num_images):
            return self
        offsets = self.offsets(0)
        rows = slice(int(offsets[first]), int(offsets[last]))
        features: Any = self.features
        return PackedPatches(features[rows], self.grids[first:last])

    def __repr__(self) -> str:
        return f"PackedPatches({self.num_patches} patches in {self.num_images} images)"


def patches_of(image: npt.ArrayLike, size: int) -> PackedPatches:
    """The patches of size x size of one image [channels, height, width], whose sides are multiples
    of it: what a convolution with that stride reads."""
    array = np.asarray(image)
    if array.ndim != 3 or size < 1 or array.shape[1] % size or array.shape[2] % size:
        raise ValueError(
            f"image has shape {array.shape}, expected [channels, height, width] in multiples of "
            f"{size}"
        )
    channels, rows, columns = array.shape[0], array.shape[1] // size, array.shape[2] // size
    cells = array.reshape(channels, rows, size, columns, size).transpose(1, 3, 0, 2, 4)
    return PackedPatches(cells.reshape(rows * columns, -1), [(rows, columns)])


def packed(made: Any, patch_size: int) -> PackedPatches:
    """The patches that a processor made of images, an object with `features` and `grids`, as a
    session takes them. Raises ValueError for an image that has become smaller than a patch."""
    for number, grid in enumerate(np.asarray(made.grids).reshape(-1, 2).tolist()):
        if min(grid) == 0:
            error = ValueError(
                f"an image becomes smaller than a patch of {patch_size} x {patch_size} pixels"
            )
            raise error if len(made.grids) == 1 else named(error, f"image {number}")
    return PackedPatches(made.features, made.grids)


def join(batches: Sequence[PackedPatches]) -> PackedPatches:
    """One batch of the images of several."""
    if not batches:
        raise ValueError("there are no images, and so no number of elements of a patch")
    if any(one.on_device for one in batches):
        raise ValueError("features lie on a device, expected host memory: join them there")
    if len(batches) == 1:
        return batches[0]
    return PackedPatches(
        np.concatenate([one.features for one in batches]),
        np.concatenate([one.grids for one in batches]),
    )
