"""Seconds that a plan takes from the headers of a very large checkpoint: 100 shards, 50,000 tensors, 160 GB of weights.

The checkpoint is a Qwen3-MoE of 127 layers with 128 experts each, as headers without data. Planned is the whole of
`vllm_offload_plan`: every header read and checked, the fit chosen, every weight placed, the document made; and the
command `pyvllm plan --fit --json` from its start to its exit. Exits 1 when either median is above --limit.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from machine import interleaved, machine

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pyvllm.config.engine import EngineConfig  # noqa: E402
from pyvllm.config.offload import OffloadConfig  # noqa: E402
from pyvllm.engine.preview import AssumedRoom, plan_document  # noqa: E402
from tests.plan.headers import QWEN3_30B_A3B, tensors, write_headers  # noqa: E402

MODEL = {**QWEN3_30B_A3B, "num_hidden_layers": 127}
SHARDS = 100
ROOM = AssumedRoom(48 * 2**30, 2**40)


def in_process(model: Path, rounds: int) -> tuple[float, float]:
    """Return the median seconds and the median processor seconds of one plan."""
    offload = OffloadConfig.from_dict({"vllm_cpp": {"device_fit": {"auto": True}}})
    config = EngineConfig(model=str(model), offload=offload)
    wall, cpu = [], []
    for _ in range(rounds):
        starts = time.perf_counter(), time.process_time()
        json.dumps(plan_document(config, ROOM))
        wall.append(time.perf_counter() - starts[0])
        cpu.append(time.process_time() - starts[1])
    return median(wall), median(cpu)


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds that pass")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        model = write_headers(MODEL, Path(folder) / "model", SHARDS)
        wall, cpu = in_process(model, options.rounds)
        words = ["-m", "pyvllm.entrypoints.cli", "plan", str(model), "--fit", "--json", "--device-bytes", "48G"]
        command = interleaved({"plan": [sys.executable, *words, "--host-bytes", "1T"]}, options.rounds, 1)["plan"]
    count = sum(1 for _ in tensors(MODEL))
    print(f"{SHARDS} shards, {count:,} tensors")
    print(f"plan and fit from headers                {wall * 1e3:7.0f} ms  ({cpu * 1e3:.0f} ms of processor time)")
    print(f"pyvllm plan --fit --json, start to exit  {command * 1e3:7.0f} ms")
    print(f"passes: at most {options.limit * 1e3:.0f} ms each")
    return int(max(wall, command) > options.limit)


if __name__ == "__main__":
    sys.exit(main())
