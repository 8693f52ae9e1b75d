"""See what an offload will do before a weight is read, let it be chosen to fit, and then load exactly that.

    python examples/python/plan_then_load.py MODEL [--weight-bytes N] [--prompt TEXT] [--dtype NAME]

MODEL is a Hugging Face directory or a GGUF file. N is how many bytes of weights the device may hold, by default three
quarters of the model's.
"""

import argparse
import json

from pyvllm import LLM, OffloadConfig, SamplingParams
from pyvllm.config.engine import EngineConfig
from pyvllm.engine.preview import plan_document

PLACES = ("device", "host", "streamed", "buffer")


def main() -> int:
    """Plan, print the plan, load it, and print what was measured; return the exit code."""
    args = parse_arguments()
    whole = plan(args, {})["weights"]["bytes"]
    room = whole * 3 // 4 if args.weight_bytes is None else args.weight_bytes
    fit = plan(args, {"vllm_cpp": {"device_fit": {"weight_budget_bytes": room, "auto": True}}})
    print(f"{whole} bytes of weights, and room for {room}: {fit['fit']['reason']}")
    print(f"the same plan: --offload-config '{fit['fit']['offload_config']}'")
    print(f"{'layer':<10}" + "".join(f"{place:>14}" for place in PLACES[:3]))
    for layer in fit["by_layer"]:
        name = "outside" if layer["layer"] is None else layer["layer"]
        print(f"{name:<10}" + "".join(f"{layer[f'{place}_bytes']:>14}" for place in PLACES[:3]))

    with LLM(args.model, dtype=args.dtype, offload_config=json.loads(fit["fit"]["offload_config"])) as llm:
        answer = llm.generate(args.prompt, SamplingParams(temperature=0, max_tokens=args.max_tokens))[0]
        measured = llm.offload_report()["measured"]
    print(f"{args.prompt}{answer.outputs[0].text}")
    for place in PLACES:
        print(f"{place:<10}{fit['planned'][f'{place}_bytes']:>14} planned{measured[f'{place}_bytes']:>14} measured")
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Plan an offload, look at it, then load it.")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--weight-bytes", type=int, metavar="N")
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--dtype", default="auto")
    return parser.parse_args()


def plan(args: argparse.Namespace, document: dict) -> dict:
    """Say where every byte would go; reads headers, no weight."""
    config = EngineConfig(model=args.model, dtype=args.dtype, offload=OffloadConfig.from_dict(document))
    return plan_document(config)


if __name__ == "__main__":
    raise SystemExit(main())
