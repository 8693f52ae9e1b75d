"""Times the CPU kernels beside torch's F.linear, shape by shape: GB/s of weights read and GFLOP/s.

    python benchmarks/projections.py [--threads N] [--type BF16|Q4_1|...] [--rounds N] [--instruction-set avx512|avx2]

The shapes are those of SmolLM2-135M. Each figure is the best of many rounds over enough copies of the matrix that no
cache holds them, in huge pages as a load places weights; torch runs over the same memory.
"""

import argparse
import time

import torch
import torch.nn.functional as F

from pyvllm.layers.kernel_library import INSTRUCTION_SETS, TYPE_NUMBERS
from pyvllm.layers.kernels import Kernels, Rows, load_kernels
from pyvllm.memory.cpu import CpuMemory
from pyvllm.model_loader.tensor_info import QUANTISED_BLOCKS
from pyvllm.model_loader.tensors import cpu_tensor_at

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576))
TOKENS = (1, 8, 32, 512)
#: Bytes of all copies of a matrix: several times the last cache of the machine.
SPREAD = 128 * 2**20


def stored_bytes(kind: str, rows: int, columns: int) -> int:
    elements, nbytes = QUANTISED_BLOCKS.get(kind, (1, 4 if kind == "F32" else 2))
    return rows * columns // elements * nbytes


def copies_of(kind: str, rows: int, columns: int) -> list[torch.Tensor]:
    """Matrices of small numbers (of any bits, where they are quantised: the time is the same)."""
    nbytes = stored_bytes(kind, rows, columns)
    count = max(2, SPREAD // nbytes)
    memory = CpuMemory(cpu_tensor_at)
    pool = memory.allocate("device", {str(number): nbytes for number in range(count)})
    for tensor in pool.values():
        tensor.random_(1, 60)
    memory.settle()
    return list(pool.values())


def best_of(rounds: int, calls) -> float:
    """Seconds of one call: the least over rounds of the mean over all copies."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for call in calls:
            call()
        best = min(best, (time.perf_counter() - start) / len(calls))
    return best


def measure(kernels: Kernels, kind: str, shape: tuple[int, int], tokens: int, rounds: int) -> str:
    rows, columns = shape
    memory = copies_of(kind, rows, columns)
    if tokens > 32:
        memory = memory[:2]
    x = torch.randn(tokens, columns).bfloat16()
    matrices = [kernels.make_linear([Rows(tensor, TYPE_NUMBERS[kind], rows)], columns) for tensor in memory]
    ours = best_of(rounds, [lambda m=m: kernels.linear(m, x) for m in matrices])
    nbytes, operations = stored_bytes(kind, rows, columns), 2 * rows * columns * tokens
    rates = f"{nbytes / ours / 1e9:7.1f} {operations / ours / 1e9:8.1f}"
    line = f"{rows:6d} {columns:5d} {tokens:5d} {ours * 1e6:10.1f} {rates}"
    if kind != "BF16":
        return line
    plain = [tensor.view(torch.bfloat16).view(rows, columns) for tensor in memory]
    theirs = best_of(max(1, rounds // 4), [lambda w=w: F.linear(x, w) for w in plain])
    return line + f" {theirs * 1e6:10.1f} {theirs / ours:6.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--type", default="BF16", choices=TYPE_NUMBERS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--instruction-set", choices=INSTRUCTION_SETS, help="default: the fastest of the processor")
    options = parser.parse_args()
    kernels = load_kernels(options.threads, options.instruction_set)
    if kernels is None:
        raise SystemExit("the CPU kernels are not built or do not serve this processor")
    torch.set_num_threads(options.threads)
    print(f"{options.type}, {options.threads} threads, {kernels.instruction_set}")
    print("  rows  cols tokens         us    GB/s  GFLOP/s   torch us  ratio")
    for shape in SHAPES:
        if shape[1] % QUANTISED_BLOCKS.get(options.type, (1, 1))[0]:
            continue
        for tokens in TOKENS:
            rounds = options.rounds if tokens <= 32 else max(2, options.rounds // 8)
            print(measure(kernels, options.type, shape, tokens, rounds), flush=True)


if __name__ == "__main__":
    main()
