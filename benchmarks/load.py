"""Seconds and peak memory of loading a model, as a GGUF file and as a bfloat16 directory, beside transformers.

The directory is made from the GGUF file. Every load is a fresh process and its files are in the page cache. Seconds are
those of the load, imports left out; the peak is the process's (VmHWM). Needs pyvllm, transformers, safetensors, gguf.
Exits 1 when a load of pyvllm is slower than transformers' of the same files, or the peak of one that expands, as
transformers does, is above 1.05 x (weights + prefetch buffers + largest tensor + an interpreter with torch).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from machine import machine

MIB = 2**20
MAX_MODEL_LEN = 256
OFFLOADS = {
    "none": "",
    "uva": '{"uva": {"cpu_offload_gb": 0.1}}',
    "prefetch": '{"prefetch": {"offload_group_size": 2, "offload_num_in_group": 1}}',
}


def peak_bytes() -> int:
    """Return the most memory that this process had resident."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def make_directory(gguf_file: str, directory: str) -> None:
    """Write the model of a GGUF file as config.json, bfloat16 model.safetensors and tokenizer.json."""
    import torch
    from safetensors.torch import save_file

    from pyvllm.model_loader.checkpoint import open_model
    from pyvllm.model_loader.reader import read_tensor
    from pyvllm.tokenizer.gguf_backend import build_backend
    from pyvllm.tokenizer.gguf_vocab import read_vocab

    source, tensors = open_model(gguf_file), {}
    with source.headers() as checkpoint:
        for info in checkpoint.tensors.values():
            tensors[info.name] = torch.empty(info.shape, dtype=torch.bfloat16)
            read_tensor(checkpoint, info, tensors[info.name])
    folder = Path(directory)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**source.document, "model_type": "llama", "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    build_backend(read_vocab(source.gguf_metadata)).tokenizer.save(str(folder / "tokenizer.json"))


def load_with_pyvllm(model: str, offload: str, gguf_weights: str = "expanded") -> dict[str, float]:
    """Load once and say what it took and what the load itself reports.

    gguf_weights: `expanded`, as the others do, which is about reading and converting; or `stored`, pyvllm's own way.
    """
    from pyvllm import LLM
    from pyvllm.engine import llm_engine as _engine  # noqa: F401 -- brings torch, whose import is not part of a load

    start = time.perf_counter()
    settings = {"device": "cpu", "dtype": "bfloat16", "gguf_weights": gguf_weights}
    llm = LLM(model, offload_config=offload, max_model_len=MAX_MODEL_LEN, **settings)
    seconds = time.perf_counter() - start
    report = llm.offload_report()
    return {
        "seconds": seconds,
        "peak": peak_bytes(),
        "weights": report["weights"]["bytes"],
        "buffers": report["planned"]["buffer_bytes"],
        "largest": max(placement["bytes"] for placement in report["placements"]),
    }


def load_with_transformers(model: str) -> dict[str, float]:
    """Load model and tokenizer once, as bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.models.llama import modeling_llama as _llama  # noqa: F401 -- imports are not part of a load

    path = Path(model)
    folder, more = (model, {}) if path.is_dir() else (str(path.parent), {"gguf_file": path.name})
    start = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(folder, **more)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **more)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak": peak_bytes(), "parts": len(tokenizer) + loaded.num_parameters()}


def interpreter_with_torch() -> dict[str, float]:
    """Say what a process has resident that only imports torch."""
    import torch

    return {"peak": peak_bytes(), "threads": torch.get_num_threads()}


TASKS = {
    "directory": make_directory,
    "pyvllm": load_with_pyvllm,
    "transformers": load_with_transformers,
    "torch": interpreter_with_torch,
}


def in_fresh_process(task: str, *arguments: str) -> dict[str, float]:
    """Run one of TASKS in a process of its own and return its answer."""
    command = [sys.executable, __file__, "--task", task, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{task} {' '.join(arguments)} failed\n{run.stdout}{run.stderr}")
    return json.loads(run.stdout.splitlines()[-1])


def measure(models: dict[str, str], rounds: int, beside: Sequence[str]) -> dict[tuple[str, str], dict[str, float]]:
    """Run every load once a round, in turn, and return the median of each figure by (files, loader).

    beside: the files that transformers loads too.
    """
    loads = {(files, "transformers"): ("transformers", models[files]) for files in beside}
    for files, path in models.items():
        for name, offload in OFFLOADS.items():
            loads[files, f"pyvllm {name}"] = ("pyvllm", path, offload)
    loads["gguf", "pyvllm as stored"] = ("pyvllm", models["gguf"], "", "stored")
    answers = {key: [] for key in loads}
    for _ in range(rounds):
        for key, load in loads.items():
            answers[key].append(in_fresh_process(*load))
    return {key: {name: median(answer[name] for answer in runs) for name in runs[0]} for key, runs in answers.items()}


def report(figures: dict[tuple[str, str], dict[str, float]], interpreter: float) -> bool:
    """Print the table and return whether every bar is met."""
    header = ("files", "loader", "seconds", "of transformers", "peak MiB", "of the least")
    print("{:10} {:16} {:>8} {:>16} {:>9} {:>13}".format(*header))
    is_good = True
    for (files, loader), figure in figures.items():
        beside = figures.get((files, "transformers"))
        ratio = figure["seconds"] / beside["seconds"] if beside else 0
        share = ""
        if "weights" in figure:
            least = figure["weights"] + figure["buffers"] + figure["largest"] + interpreter
            share = f"{figure['peak'] / least:.2f}"
            is_good = is_good and ratio <= 1 and figure["peak"] <= 1.05 * least
        peak = figure["peak"] / MIB
        of_transformers = f"{ratio:.2f}" if beside else ""
        print(f"{files:10} {loader:16} {figure['seconds']:8.2f} {of_transformers:>16} {peak:9.0f} {share:>13}")
    sizes = next(figure for figure in figures.values() if "weights" in figure)
    print(
        f"weights {sizes['weights'] / MIB:.0f} MiB, largest tensor {sizes['largest'] / MIB:.0f} MiB, "
        f"interpreter with torch {interpreter / MIB:.0f} MiB; passes: at most 1 of transformers, 1.05 of the least"
    )
    return is_good


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file of the llama architecture")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-transformers", action="store_true", help="look at the peaks alone")
    options = parser.parse_args()
    print(machine())
    beside = () if options.without_transformers else ("directory", "gguf")
    if beside and not find_spec("accelerate"):
        print("accelerate is not installed, so transformers cannot read the GGUF file and its row is left out")
        beside = ("directory",)
    with tempfile.TemporaryDirectory() as folder:
        models = {"directory": f"{folder}/model", "gguf": str(Path(options.model).resolve())}
        in_fresh_process("directory", models["gguf"], models["directory"])
        for file in (Path(models["gguf"]), Path(models["directory"], "model.safetensors")):
            file.read_bytes()  # into the page cache
        interpreter = median(in_fresh_process("torch")["peak"] for _ in range(3))
        return int(not report(measure(models, options.rounds, beside), interpreter))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--task"]:
        print(json.dumps(TASKS[sys.argv[2]](*sys.argv[3:])))
    else:
        sys.exit(main())
