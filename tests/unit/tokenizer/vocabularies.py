"""Small vocabularies for tests: as GGUF metadata, and as directories with a tokenizer.json."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pyvllm.tokenizer.tokenizer import tokenizer_from_gguf

DATA = Path(__file__).parents[2] / "data"
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
WORDS = ("the", " the", "12", "123", "He", "llo", "hello", " wor", "ld", "\r\n", "\n\n", "  ", "'s", "é", "🙂")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def byte_level_merges():
    """Return merges that build every word of WORDS from its first byte on, without repeats."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merges = []
    for word in WORDS:
        letters = level.pre_tokenize_str(word)[0][0]
        merges += [(letters[:i], letters[i]) for i in range(1, len(letters))]
    return list(dict.fromkeys(merges))


def byte_level_metadata(pre="gpt-2", **changes):
    """Return GGUF metadata of a byte-level BPE: all bytes, WORDS, `<s>`, `</s>` and the user's `<tool>`."""
    merges = byte_level_merges()
    normal = [*ALPHABET, *dict.fromkeys(left + right for left, right in merges)]
    size = len(normal)
    keys = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [*normal, "<s>", "</s>", "<tool>"],
        "token_type": [NORMAL] * size + [CONTROL, CONTROL, USER_DEFINED],
        "merges": [f"{left} {right}" for left, right in merges],
        "bos_token_id": size,
        "eos_token_id": size + 1,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def sentencepiece_data():
    return json.loads((DATA / "tokens_sentencepiece.json").read_text())


def sentencepiece_metadata(**changes):
    """Return GGUF metadata of the SentencePiece vocabulary in the test data."""
    data = sentencepiece_data()
    keys = {
        "model": "llama",
        "tokens": data["tokens"],
        "token_type": data["token_types"],
        "scores": data["scores"],
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def byte_level_tokenizer(**changes):
    return tokenizer_from_gguf(byte_level_metadata(**changes))


def sentencepiece_tokenizer(**changes):
    return tokenizer_from_gguf(sentencepiece_metadata(**changes))


def byte_level_backend():
    """Return a byte-level BPE of the `tokenizers` library with `<s>` and `</s>`."""
    merges = byte_level_merges()
    tokens = [*ALPHABET, *dict.fromkeys(left + right for left, right in merges)]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def with_template(backend, single):
    """Set a post-processor, for example "<s> $A"."""
    names = [name for name in ("<s>", "</s>") if name in single]
    pairs = [(name, backend.token_to_id(name)) for name in names]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=pairs)
    return backend


def sentencepiece_backend():
    """Return a SentencePiece-like BPE of the `tokenizers` library, with the decoder of Llama 2."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁ab"]
    ids = {token: i for i, token in enumerate(tokens)}
    model = models.BPE(ids, [("a", "b"), ("▁", "ab")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(" ", 1, 0)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def write_directory(directory, backend=None, config=None, **files):
    """Write tokenizer.json, tokenizer_config.json if given, and other JSON files (name without the ending)."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text((backend or byte_level_backend()).to_str(), encoding="utf-8")
    documents = {**({} if config is None else {"tokenizer_config": config}), **files}
    for name, document in documents.items():
        (directory / f"{name}.json").write_text(json.dumps(document))
    return str(directory)
