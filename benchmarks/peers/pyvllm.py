"""This project's engine, loaded as its entry points load it: torch comes when the model's tokenizer is there.

Settings: those of `EngineConfig`; `offload` is its JSON document.
"""

from collections.abc import Sequence

from peers.measuring import Task, main

import pyvllm
from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.start import load_engine
from pyvllm.sampling_params import SamplingParams


class Engine:
    """A loaded engine that takes every batch of the task in one step."""

    def __init__(self, task: Task) -> None:
        settings = dict(task.settings)
        offload = OffloadConfig.from_json(settings.pop("offload", None))
        seqs = max(1, *task.batches)
        config = EngineConfig(model=task.model, device="cpu", max_num_seqs=seqs, offload=offload, **settings)
        self._engine = load_engine(config)
        import torch

        self.versions = {"pyvllm": pyvllm.__version__, "torch": torch.__version__}
        report = self._engine.offload_report()
        self.sizes = {
            "weights": report["weights"]["bytes"],
            "buffers": report["planned"]["buffer_bytes"],
            "host": report["planned"]["host_bytes"],
            "streamed": report["planned"]["streamed_bytes"],
            "cache": report["planned"]["kv_cache_bytes"],
        }

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        """Submit all prompts and wait for them."""
        params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
        items = [self._engine.submit(prompt, params) for prompt in prompts]
        for item in items:
            item.wait()
            if item.error is not None:
                raise item.error
        return [item.request.output_token_ids for item in items]


if __name__ == "__main__":
    main(Engine)
