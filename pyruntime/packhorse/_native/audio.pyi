import numpy as np
import numpy.typing as npt

def token_times(
    weights: npt.NDArray[np.float32], first: int, end: int, filter_width: int
) -> list[int]: ...
def log_mel(
    samples: npt.NDArray[np.float32], num_mels: int, reflect: bool, threads: int
) -> npt.NDArray[np.float32]: ...

class FrameMaker:
    num_mels: int
    def __init__(self, device: str, num_mels: int, threads: int) -> None: ...
    def make(
        self, audios: list[npt.NDArray[np.float32]], reflect: bool
    ) -> list[npt.NDArray[np.float32]]: ...
