"""vLLM for CPU. Settings: keywords of `vllm.LLM`."""

import os
from collections.abc import Sequence

from peers.measuring import Task, main

# Read when vllm is imported: by default it leaves one core to itself, looks models up online, and logs to stdout.
# Its cache is 1 GiB here, of a share of memory that a machine in use still has.
os.environ.update(
    VLLM_CPU_NUM_OF_RESERVED_CPU="0", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_CPU_KVCACHE_SPACE="1"
)

import vllm
from vllm import LLM, SamplingParams, TokensPrompt


class Engine:
    """A loaded vLLM engine that takes every batch of the task at once."""

    def __init__(self, task: Task) -> None:
        self._llm = LLM(
            task.model,
            dtype="bfloat16",
            max_model_len=-(-task.max_len // 128) * 128,
            max_num_seqs=max(1, *task.batches),
            enable_prefix_caching=False,
            gpu_memory_utilization=0.3,
            **task.settings,
        )
        self.versions = {"vllm": vllm.__version__}
        self.sizes = {}

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        """Answer all prompts at once."""
        params = SamplingParams(temperature=0.0, max_tokens=new, min_tokens=new, ignore_eos=True)
        asked = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
        outputs = self._llm.generate(asked, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    main(Engine)
