"""llama.cpp through the low-level calls of llama-cpp-python, the only ones that decode many sequences. No settings."""

import ctypes
from collections.abc import Sequence

import llama_cpp
import numpy as np
from peers.measuring import Task, main

#: Tokens of a batch, llama.cpp's own default.
_MAX_BATCH = 2048


class Context:
    """A llama.cpp context for some number of sequences."""

    def __init__(self, model: int, task: Task, sequences: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * -(-(task.max_len if sequences == 1 else task.prompt + task.new) // 256) * 256
        params.n_batch, params.n_seq_max = _MAX_BATCH, sequences
        params.n_threads = params.n_threads_batch = task.threads
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp made no context of {params.n_ctx} tokens for {sequences} sequences")
        self._batch = llama_cpp.llama_batch_init(_MAX_BATCH, 0, 1)
        self._vocab_size = task.vocab_size

    def clear(self) -> None:
        """Forget all sequences."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)

    def decode(self, tokens: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Compute (token, position, sequence, whether a token is chosen after it) and give the chosen ones."""
        batch, outputs = self._batch, 0
        for row, (token, position, sequence, is_last) in enumerate(tokens):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
            batch.logits[row] = is_last
            outputs += is_last
        batch.n_tokens = len(tokens)
        if status := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode of {len(tokens)} tokens gave {status}")
        logits = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, shape=(outputs, self._vocab_size)).argmax(axis=1).tolist()


class Model:
    """A loaded model with a context for one sequence; one for batches is made at the first batch of its size."""

    def __init__(self, task: Task) -> None:
        # Kept, for llama.cpp calls it as long as the process lives.
        self._silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(task.model.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp could not load {task.model}")
        self._task = task
        self._contexts = {1: Context(self._model, task, 1)}
        self.versions = {"llama-cpp-python": llama_cpp.__version__}
        self.sizes = {}

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        """Answer all prompts, each as a sequence of its own."""
        count = len(prompts)
        if count not in self._contexts:
            self._contexts[count] = Context(self._model, self._task, count)
        context = self._contexts[count]
        context.clear()
        answers = [[token] for token in self._prefill(context, prompts)]
        length = len(prompts[0])
        for step in range(new - 1):
            tokens = [(answers[sequence][-1], length + step, sequence, True) for sequence in range(count)]
            for answer, token in zip(answers, context.decode(tokens), strict=True):
                answer.append(token)
        return answers

    @staticmethod
    def _prefill(context: Context, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Compute the prompts, as many at once as a batch holds, and give the first token of each answer."""
        length = len(prompts[0])
        at_once, chosen = max(1, _MAX_BATCH // length), []
        for first in range(0, len(prompts), at_once):
            chosen += context.decode(
                [
                    (token, position, first + sequence, position == length - 1)
                    for sequence, prompt in enumerate(prompts[first : first + at_once])
                    for position, token in enumerate(prompt)
                ]
            )
        return chosen


if __name__ == "__main__":
    main(Model)
