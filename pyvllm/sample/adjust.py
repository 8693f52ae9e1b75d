"""What changes a request's logits before a token is chosen: its own processors, penalties, and a minimum length."""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import torch

from pyvllm.errors import GenerationError, InvalidArgument
from pyvllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pyvllm.sample.structured import StructuredOutput

#: Hears the tokens of the answer so far and changes the logits [V] float32 in place.
LogitsProcessor = Callable[[list[int], torch.Tensor], None]


class LogitsAdjuster:
    """One request's changes, in this order: processors, allowed tokens, minimum length, bias, penalties, grammar.

    The grammar comes last, so that nothing before it can make a token possible that it forbids.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        eos_token_ids: Collection[int],
        processors: Sequence[LogitsProcessor] = (),
        structured: "StructuredOutput | None" = None,
    ) -> None:
        """Take the request's settings. eos_token_ids: what, with its stop tokens, may not come before `min_tokens`.

        Raises InvalidArgument where nothing at all could come.
        """
        self._params = params
        ends = {*eos_token_ids, *params.stop_token_ids}
        allowed = params.allowed_token_ids
        if params.min_tokens and allowed is not None and ends.issuperset(allowed):
            raise InvalidArgument("allowed_token_ids are all end tokens, which 'min_tokens' does not let come at first")
        self._allowed = None if allowed is None else torch.tensor(allowed, dtype=torch.int64)
        bias = params.logit_bias or {}
        self._biased = torch.tensor(list(bias), dtype=torch.int64)
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float32)
        self._prompt = torch.tensor(sorted(set(prompt_token_ids)), dtype=torch.int64)
        self._eos = torch.tensor(sorted(ends), dtype=torch.int64)
        self._processors = processors
        self._structured = structured

    @classmethod
    def needed(cls, params: SamplingParams, processors: Sequence[LogitsProcessor]) -> bool:
        """Whether a request changes its logits at all."""
        acts = params.min_tokens or params.has_penalties or params.logit_bias or params.structured_outputs
        return bool(processors or acts or params.allowed_token_ids is not None)

    @property
    def is_complete(self) -> bool:
        """Whether the structured output has ended, so that nothing may follow."""
        return self._structured is not None and self._structured.is_complete

    def adjust(self, logits: torch.Tensor, output_token_ids: list[int]) -> torch.Tensor:
        """Give the changed logits [V] float32; the argument stays as it is. Raises GenerationError.

        They stay on their device, unless the caller's own processors are to see them: those get CPU memory.
        """
        device = torch.device("cpu") if self._processors else logits.device
        scores = logits.detach().to(device=device, dtype=torch.float32, copy=True)
        for process in self._processors:
            try:
                process(output_token_ids, scores)
            except Exception as error:  # a caller's code: what it raises ends its own request and no other
                text = f"a logits processor raised {type(error).__name__}: {error}"
                raise GenerationError(text) from error
        if self._allowed is not None:
            allowed = self._allowed.to(device)
            scores = torch.full_like(scores, float("-inf")).index_copy_(0, allowed, scores[allowed])
        if len(output_token_ids) < self._params.min_tokens:
            scores[self._eos[self._eos < scores.numel()].to(device)] = float("-inf")
        if len(self._bias):
            scores[self._biased.to(device)] += self._bias.to(device)
        if self._params.has_penalties:
            self._penalise(scores, output_token_ids)
        if self._structured is not None:
            self._structured.mask(scores)
        return scores

    def accept(self, token_id: int) -> None:
        """Tell the grammar which token was chosen."""
        if self._structured is not None:
            self._structured.accept(token_id)

    def _penalise(self, scores: torch.Tensor, output_token_ids: list[int]) -> None:
        """Lower what was said already.

        Repetition divides positive logits, and multiplies negative ones, of tokens of prompt and answer; presence and
        frequency subtract from tokens of the answer. Source: Keskar et al. 2019, section 4.1 (repetition); the OpenAI
        API reference, "Frequency and presence penalties"; the order is vLLM's `apply_penalties`.
        """
        params = self._params
        output, counts = torch.unique(torch.tensor(output_token_ids, dtype=torch.int64), return_counts=True)
        lowered = params.frequency_penalty * counts.to(torch.float32) + params.presence_penalty
        if params.repetition_penalty != 1:
            seen = torch.unique(torch.cat((self._prompt, output))).to(scores.device)
            values = scores[seen]
            penalty = params.repetition_penalty
            scores[seen] = torch.where(values > 0, values / penalty, values * penalty)
        scores[output.to(scores.device)] -= lowered.to(scores.device)
