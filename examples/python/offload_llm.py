"""Run a model that is larger than its device, with pyvllm.LLM: the four steps of `make demo`.

    python examples/python/offload_llm.py MODEL [--prompt TEXT] [--max-tokens N] [--dtype NAME]

MODEL is a Hugging Face directory or a GGUF file. The device is given six tenths of the bytes that the weights have.
"""

import argparse
import re

from pyvllm import LLM, InvalidArgument, ModelLoadError, OffloadConfig, SamplingParams
from pyvllm.config.engine import EngineConfig
from pyvllm.engine.preview import plan_document

GROUP_SIZE = 4


def main() -> int:
    """Show the refusal, both backends and a document that contradicts itself; return the exit code."""
    args = parse_arguments()
    weight_bytes = plan(args, {})["weights"]["bytes"]
    device_bytes = weight_bytes // 10 * 6
    fit = {"device_fit": {"weight_budget_bytes": device_bytes}}
    print(f"The model has {weight_bytes} bytes of weights. The device is given {device_bytes}.")

    print("\n(1) without offload")
    gb = refused_budget(args, {"vllm_cpp": fit})

    print(f"\n(2) uva, with that budget: cpu_offload_gb {gb}")
    complete(args, {"uva": {"cpu_offload_gb": gb}, "vllm_cpp": fit}, device_bytes)

    print("\n(3) prefetch")
    complete(args, smallest_prefetch(args, fit), device_bytes)

    print("\n(4) a document that contradicts itself")
    try:
        LLM(args.model, offload_config={"prefetch": {"offload_group_size": 4, "offload_num_in_group": 5}})
    except InvalidArgument as error:
        print(f"refused: {error}")
        return 0
    return 1


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Run a model that is larger than its device, with pyvllm.LLM.")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--dtype", default="auto")
    return parser.parse_args()


def plan(args: argparse.Namespace, document: dict) -> dict:
    """Say where every byte would go; reads no weight."""
    config = EngineConfig(model=args.model, dtype=args.dtype, offload=OffloadConfig.from_dict(document))
    return plan_document(config)


def refused_budget(args: argparse.Namespace, document: dict) -> float:
    """Load without offload, which must be refused, and read the smallest budget in GiB from the refusal."""
    try:
        LLM(args.model, dtype=args.dtype, offload_config=document).close()
    except ModelLoadError as error:
        print(f"refused: {error}")
        found = re.search(r"the smallest cpu_offload_gb that fits is ([0-9.e-]*[0-9])", str(error))
        if found:
            return float(found[1])
        raise
    raise SystemExit("the model was loaded on a device that is smaller than it")


def smallest_prefetch(args: argparse.Namespace, fit: dict) -> dict:
    """Find the document that streams the fewest of every four layers and fits."""
    for num_in_group in range(1, GROUP_SIZE + 1):
        document = {
            "prefetch": {"offload_group_size": GROUP_SIZE, "offload_num_in_group": num_in_group},
            "vllm_cpp": fit,
        }
        try:
            plan(args, document)
        except ModelLoadError:
            continue
        return document
    raise SystemExit("no prefetch document fits")


def complete(args: argparse.Namespace, document: dict, device_bytes: int) -> None:
    """Load with an offload, write the text and say where every byte is."""
    with LLM(args.model, dtype=args.dtype, offload_config=document) as llm:
        output = llm.generate(args.prompt, SamplingParams(temperature=0, max_tokens=args.max_tokens))[0]
        report = llm.offload_report()
    print(f"{args.prompt}{output.outputs[0].text}")
    asked, planned, measured = report["asked"], report["planned"], report["measured"]
    print(f"{'bytes':<10}{'asked':>14}{'planned':>14}{'measured':>14}")
    for place in ("device", "host", "streamed", "buffer"):
        wanted = device_bytes if place == "device" else asked.get(f"{place}_bytes")
        numbers = ("-" if wanted is None else wanted, planned[f"{place}_bytes"], measured[f"{place}_bytes"])
        print(f"{place:<10}" + "".join(f"{number:>14}" for number in numbers))


if __name__ == "__main__":
    raise SystemExit(main())
