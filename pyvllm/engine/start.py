"""From a configuration to a running engine, for entry points: torch is imported only for a model that may be loaded."""

from typing import TYPE_CHECKING

from pyvllm.config.engine import EngineConfig
from pyvllm.engine.preview import prepare
from pyvllm.engine.progress import Progress

if TYPE_CHECKING:
    from pyvllm.engine.llm_engine import LLMEngine


def load_engine(config: EngineConfig, progress: Progress | None = None) -> "LLMEngine":
    """Plan a load, carry it out, recount, and start.

    progress: hears bytes done, bytes planned and a weight's name; false cancels. Raises InvalidArgument,
    ModelLoadError or Cancelled; nothing stays then. A refusal costs no import of torch.
    """
    prepared = prepare(config)
    try:
        from pyvllm.engine.llm_engine import LLMEngine
    except BaseException:
        prepared.checkpoint.close()
        raise
    return LLMEngine.load_prepared(prepared, progress)
