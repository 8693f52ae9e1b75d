"""How a text is cut into words before byte-level BPE, by the name that a GGUF file gives in `tokenizer.ggml.pre`.

A pattern is a format rule of a published tokenizer: another pattern gives other token ids. Names whose pattern is not
certain are not in the table, and the reader refuses them.
"""

from dataclasses import dataclass

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_AFTER_NUMBER = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _AFTER_NUMBER
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _AFTER_NUMBER
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One row of the table.

    patterns: applied one after the other; a match and what lies between matches are pieces of their own.
    ignore_merges: a piece that is a token is that token, whatever the merges would make of it.
    add_bos: the default where the file has no `tokenizer.ggml.add_bos_token`.
    nfc: the text is put in Unicode normal form C first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_LLAMA3_ROW = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_DIGITS_ROW = PreTokenizer((r"\p{N}", _GPT2))
_QWEN2_ROW = PreTokenizer((_QWEN2,), nfc=True)

PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    "deepseek-r1-qwen": PreTokenizer((_QWEN2,)),
    "gpt-2": PreTokenizer((_GPT2,)),
    "llama-bpe": _LLAMA3_ROW,
    "llama-v3": _LLAMA3_ROW,
    "llama3": _LLAMA3_ROW,
    "qwen2": _QWEN2_ROW,
    "refact": _DIGITS_ROW,
    "smollm": _DIGITS_ROW,
    "starcoder": _DIGITS_ROW,
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
}
"""Source: the names, defaults and patterns of llama.cpp, src/llama-vocab.cpp, held against the `pre_tokenizer` and
`normalizer` of the tokenizer.json files that the names stand for (openai-community/gpt2, HuggingFaceTB/SmolLM2,
Qwen/Qwen2, meta-llama/Meta-Llama-3, mistralai/Mistral-Nemo, deepseek-ai/deepseek-coder)."""
