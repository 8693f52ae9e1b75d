"""Builds the tokenizer of a prepared load. No torch, so that a load can do it before torch is imported."""

from dataclasses import replace

from pyvllm import logger
from pyvllm.engine.preview import Prepared
from pyvllm.memory.cpu import release_free_memory
from pyvllm.tokenizer.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_gguf


def take_tokenizer(prepared: Prepared) -> tuple[Prepared, Tokenizer]:
    """Build a model's tokenizer, and give the load without the lists that only a tokenizer is built from.

    Building a vocabulary frees twice what it keeps, in pieces that lie between what it keeps. The whole pages of them
    are given back to the system here; the rest is used by what is allocated next, so that this is best done before
    something large is imported. Raises ModelLoadError, and closes the checkpoint then.
    """
    try:
        tokenizer = _tokenizer(prepared)
    except BaseException:
        prepared.checkpoint.close()
        raise
    kept = replace(prepared, source=prepared.source.without_headers())
    release_free_memory()
    return kept, tokenizer


def _tokenizer(prepared: Prepared) -> Tokenizer:
    override = prepared.config.tokenizer_config_path
    metadata = prepared.source.gguf_metadata
    if metadata is not None:
        tokenizer = tokenizer_from_gguf(metadata, override)
    else:
        tokenizer = load_tokenizer(prepared.source.path, override)
    vocab = prepared.model_config.vocab_size
    if tokenizer.num_ids > vocab:
        # Community checkpoints carry an added padding token or two; a prompt that uses one is refused by itself.
        logger.warning(
            f"{prepared.source.name}: the tokenizer has {tokenizer.num_ids} ids and the model's vocab_size is {vocab}"
        )
    return tokenizer
