"""From a configuration to a running engine, for entry points: torch is imported only for a model that may be loaded."""

from typing import TYPE_CHECKING

from pyvllm.config.engine import EngineConfig
from pyvllm.engine.preview import prepare
from pyvllm.engine.progress import Progress
from pyvllm.errors import DoesNotFit
from pyvllm.memory.cpu import host_room

if TYPE_CHECKING:
    from pyvllm.engine.llm_engine import LLMEngine


def load_engine(config: EngineConfig, progress: Progress | None = None) -> "LLMEngine":
    """Plan a load, carry it out, recount, and start.

    progress: hears bytes done, bytes planned and a weight's name; false cancels. Raises InvalidArgument,
    ModelLoadError or Cancelled; nothing stays then. A refusal, that of a tokenizer included, costs no import of torch.
    """
    prepared = prepare(config)
    try:
        # The tokenizer first: torch, imported after it, is laid into what building a vocabulary leaves free.
        from pyvllm.engine.model_tokenizer import take_tokenizer

        prepared, tokenizer = take_tokenizer(prepared)

        from pyvllm.engine.llm_engine import LLMEngine
    except BaseException as error:
        prepared.checkpoint.close()
        if _is_without_room(error):
            room, reason = host_room(), str(error) or type(error).__name__
            raise DoesNotFit(
                f"the host has not the room for the code that computes ({reason}): {room.source} leaves "
                f"{room.nbytes} bytes; raise the limit"
            ) from error
        raise
    return LLMEngine.load_prepared(prepared, tokenizer, progress)


def _is_without_room(error: BaseException) -> bool:
    """Whether an import failed for want of memory. Source: glibc's dl-load.c; other reasons follow after a colon."""
    endings = ("failed to map segment from shared object", "Cannot allocate memory")
    return isinstance(error, MemoryError) or str(error).endswith(endings)
