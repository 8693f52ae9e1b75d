"""What the machine itself can do, and what an interpreter with torch takes: the limits that figures are held against.

TASK: `nbytes`, the size of the buffer that is read and copied, and `matrix`, the rows of a square matrix.
"""

import json
import sys
import time
from collections.abc import Callable

import torch
from peers.measuring import memory


def best_seconds(run: Callable[[], object], rounds: int = 7) -> float:
    """Give the shortest time of some runs: a limit is what is reached at best."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@torch.inference_mode()
def main(nbytes: int, matrix: int) -> dict[str, object]:
    """Measure and give bytes and operations a second."""
    answer: dict[str, object] = {"interpreter": memory(), "torch": torch.__version__}
    source = torch.ones(nbytes // 4)
    target = torch.empty_like(source)
    table, vector = source.view(-1, 1024), torch.ones(1024)
    # Which of the two reads faster depends on the library that torch was built with.
    reads = (best_seconds(source.sum), best_seconds(lambda: table @ vector))
    left, right = torch.ones(matrix, matrix).bfloat16(), torch.ones(matrix, matrix).bfloat16()
    answer["read_bytes_per_s"] = source.nbytes / min(reads)
    answer["copy_bytes_per_s"] = 2 * source.nbytes / best_seconds(lambda: target.copy_(source))
    answer["matmul_flop_per_s"] = 2 * matrix**3 / best_seconds(lambda: left @ right)
    return answer


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    print(json.dumps(main(task["nbytes"], task["matrix"])))
