"""Build a `tokenizers` tokenizer from a GGUF vocabulary: byte-level BPE (`gpt2`) or SentencePiece BPE (`llama`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pyvllm import logger
from pyvllm.errors import FormatError, ModelLoadError
from pyvllm.tokenizer.gguf_vocab import BYTE, CONTROL, PREFIX, UNKNOWN, USER_DEFINED, GgufVocab
from pyvllm.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

SPACE = "\u2581"
MAX_PIECE_CHARACTERS = 512


@dataclass(frozen=True, slots=True)
class GgufBackend:
    """A tokenizer of the `tokenizers` library, and whether a prompt begins with bos where the file does not say."""

    tokenizer: Tokenizer
    add_bos: bool


def build_backend(vocab: GgufVocab) -> GgufBackend:
    """Build the tokenizer that a GGUF vocabulary describes; special and user-defined tokens stay whole in a text.

    Raises ModelLoadError for a pre-tokenizer that is not in the table, FormatError for a vocabulary that contradicts
    itself.
    """
    backend = _byte_level_bpe(vocab) if vocab.model == "gpt2" else GgufBackend(_sentencepiece_bpe(vocab), add_bos=True)
    ends = {vocab.bos_token_id, vocab.eos_token_id, *vocab.other_eos_token_ids} - {None}
    special = {token_id: token for token_id, token in vocab.of_types(CONTROL, UNKNOWN)}
    special |= {token_id: vocab.tokens[token_id] for token_id in ends if token_id is not None}
    defined = [token for token_id, token in vocab.of_types(USER_DEFINED) if token_id not in special]
    backend.tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special.values()])
    backend.tokenizer.add_tokens([AddedToken(token, normalized=False) for token in defined])
    return backend


def _byte_level_bpe(vocab: GgufVocab) -> GgufBackend:
    row = _pre_tokenizer(vocab.pre)
    if vocab.merges is None:
        raise FormatError(f"{PREFIX}merges is missing: byte-level BPE needs them")
    # A merge is two tokens and a space between; a token of its own first character may be that space.
    splits = [merge.find(" ", 1) for merge in vocab.merges]
    for i, (merge, split) in enumerate(zip(vocab.merges, splits, strict=True)):
        if split < 0:
            raise FormatError(f"{PREFIX}merges: {merge!r} at index {i} is not two tokens with a space between")
    pairs = [(merge[:split], merge[split + 1 :]) for merge, split in zip(vocab.merges, splits, strict=True)]
    ids = {token: i for i, token in enumerate(vocab.tokens)}
    for left, right in pairs:
        if left not in ids or right not in ids or left + right not in ids:
            raise FormatError(f"{PREFIX}merges: {left!r} and {right!r} need tokens that {PREFIX}tokens lacks")
    tokenizer = Tokenizer(models.BPE(ids, pairs, ignore_merges=row.ignore_merges))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in row.patterns]
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytes_of])
    if row.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return GgufBackend(tokenizer, row.add_bos)


def _pre_tokenizer(name: str | None) -> PreTokenizer:
    if name is None:
        logger.warning(f"{PREFIX}pre is missing: 'default' is used, and token ids may differ from the model's")
        return PRE_TOKENIZERS["default"]
    if name not in PRE_TOKENIZERS:
        raise ModelLoadError(f"{PREFIX}pre {name!r} is not supported; supported: {', '.join(sorted(PRE_TOKENIZERS))}")
    return PRE_TOKENIZERS[name]


def _sentencepiece_bpe(vocab: GgufVocab) -> Tokenizer:
    scores = vocab.scores
    if scores is None:
        raise FormatError(f"{PREFIX}scores is missing: SentencePiece BPE merges by score")
    ids = {token: i for i, token in enumerate(vocab.tokens)}
    unknown = None if vocab.unknown_token_id is None else vocab.tokens[vocab.unknown_token_id]
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in ids]
    if missing and unknown is None:
        raise FormatError(f"{PREFIX}tokens lacks the byte token <0x{missing[0]:02X}>, and there is no unknown token")
    model = models.BPE(ids, _merges_of_scores(vocab, scores, ids), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    prefix = [normalizers.Prepend(SPACE)] if vocab.add_space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, spaces])
    strip = [decoders.Strip(" ", 1, 0)] if vocab.add_space_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip],
    )
    return tokenizer


def _merges_of_scores(vocab: GgufVocab, scores: Sequence[float], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges in the order that SentencePiece applies them: the piece with the highest score first.

    SentencePiece joins two neighbours when their concatenation is a piece: each way to cut a piece in two is a merge.
    Source: Kudo and Richardson 2018; `bpe_model.cc` of google/sentencepiece.
    """
    merges: list[tuple[float, str, str]] = []
    for token_id, (piece, kind) in enumerate(zip(vocab.tokens, vocab.token_types, strict=True)):
        if kind in (CONTROL, UNKNOWN, BYTE, USER_DEFINED):
            continue
        if len(piece) > MAX_PIECE_CHARACTERS:
            found = f"token {token_id} has {len(piece)} characters"
            raise FormatError(f"{PREFIX}tokens: {found}; at most {MAX_PIECE_CHARACTERS} are supported")
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                merges.append((-scores[token_id], left, right))
    merges.sort(key=lambda merge: merge[0])
    return [(left, right) for _, left, right in merges]
