import numpy as np
import numpy.typing as npt

def log_mel(
    samples: npt.NDArray[np.float32], num_mels: int, reflect: bool, threads: int
) -> npt.NDArray[np.float32]: ...
