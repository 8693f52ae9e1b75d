"""Hugging Face transformers, as `generate` runs a bfloat16 model. Settings: none."""

from collections.abc import Sequence

import torch
import transformers
from peers.measuring import Task, main
from transformers import AutoModelForCausalLM, AutoTokenizer


class Model:
    """A loaded model and its tokenizer."""

    def __init__(self, task: Task) -> None:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(task.threads)
        self._tokenizer = AutoTokenizer.from_pretrained(task.model)
        self.model = AutoModelForCausalLM.from_pretrained(task.model, dtype=torch.bfloat16).eval()
        self.model.generation_config.eos_token_id = None
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        self.sizes = {}

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        """Answer the prompts as one batch; they have one length, so nothing is padded."""
        ids = torch.tensor(prompts)
        answers = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )
        return answers[:, ids.shape[1] :].tolist()


if __name__ == "__main__":
    main(Model)
