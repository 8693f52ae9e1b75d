"""From token ids to text: what bytes a token stands for, and how a stream of tokens becomes well-formed UTF-8.

The decoders of the `tokenizers` library work on a whole sequence. Here each of them is a function of one token, so that
text can be shown while it is generated, at a cost that does not grow with what was generated before.
"""

import codecs
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pyvllm.errors import FormatError

Piece = str | bytes
Step = Callable[[Piece, bool], Piece]

SUPPORTED_DECODERS = ("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Sequence", "Strip", "WordPiece")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class DecodeRule:
    """How one token becomes bytes.

    steps: applied in order to the token's string; the flag says whether it is the first token of the text.
    strip: a character and how many of it are taken off the start of the whole text.
    """

    steps: tuple[Step, ...]
    strip: tuple[str, int] = ("", 0)

    def piece(self, token: str, first: bool) -> bytes:
        """Return the bytes that `token` adds to the text."""
        piece: Piece = token
        for step in self.steps:
            piece = step(piece, first)
        return piece if isinstance(piece, bytes) else piece.encode("utf-8", "replace")


def decode_rule(state: bytes | str | None) -> DecodeRule:
    """Return the rule of a decoder, given as the JSON that the `tokenizers` library keeps of it.

    None is a tokenizer without a decoder: the library then puts one space between tokens.
    Raises FormatError for a decoder that is not in SUPPORTED_DECODERS, by name.
    Source: the decoders of huggingface/tokenizers, tokenizers/src/decoders and src/pre_tokenizers/byte_level.rs.
    """
    if state is None:
        return DecodeRule((_spaced,))
    decoder = json.loads(state)
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    steps: list[Step] = []
    strip = ("", 0)
    fused = False
    for part in parts:
        if part["type"] == "Fuse":
            fused = True
        elif part["type"] == "Strip" and fused:
            if part["stop"]:
                raise FormatError("tokenizer.json: decoder Strip after Fuse with 'stop' above 0 is not supported")
            strip = (part["content"], part["start"])
        else:
            steps.append(_step(part))
    return DecodeRule(tuple(steps), strip)


def _step(part: Mapping[str, object]) -> Step:
    kind = part["type"]
    if kind == "ByteLevel":
        return _byte_level()
    if kind == "ByteFallback":
        return _byte_fallback
    if kind == "Metaspace":
        return _metaspace(str(part["replacement"]), part.get("prepend_scheme") != "never")
    if kind == "Replace":
        return _replace(part["pattern"], str(part["content"]))
    if kind == "Strip":
        return _strip(str(part["content"]), int(str(part["start"])), int(str(part["stop"])))
    if kind == "WordPiece":
        return _word_piece(str(part["prefix"]), bool(part["cleanup"]))
    raise FormatError(f"tokenizer.json: decoder {kind!r} is not supported; supported: {', '.join(SUPPORTED_DECODERS)}")


def _spaced(piece: Piece, first: bool) -> Piece:
    return piece if first or isinstance(piece, bytes) else " " + piece


def byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    Printable Latin-1 stands for itself, the other 68 bytes for the characters from U+0100 on, in order.
    Source: bytes_to_unicode of openai/gpt-2, src/encoder.py.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _byte_level() -> Step:
    """Turn each character into the byte that it stands for; a token with any other character is text as it is."""
    alphabet = byte_alphabet()

    def step(piece: Piece, first: bool) -> Piece:
        """Give the bytes of a piece that is no bytes yet."""
        if isinstance(piece, bytes):
            return piece
        try:
            return bytes([alphabet[character] for character in piece])
        except KeyError:
            return piece.encode("utf-8", "replace")

    return step


def _byte_fallback(piece: Piece, first: bool) -> Piece:
    """Turn `<0xNN>` into that byte."""
    match = _BYTE_TOKEN.fullmatch(piece) if isinstance(piece, str) else None
    return bytes([int(match[1], 16)]) if match else piece


def _metaspace(replacement: str, prepended: bool) -> Step:
    """Turn the replacement into spaces, or into nothing in the first token of a text that one was put before."""

    def step(piece: Piece, first: bool) -> Piece:
        if isinstance(piece, bytes):
            return piece
        return piece.replace(replacement, "" if first and prepended else " ")

    return step


def _replace(pattern: object, content: str) -> Step:
    if not isinstance(pattern, dict) or not isinstance(pattern.get("String"), str):
        raise FormatError("tokenizer.json: decoder Replace is supported with a 'String' pattern only")
    old = pattern["String"]

    def step(piece: Piece, first: bool) -> Piece:
        return piece if isinstance(piece, bytes) else piece.replace(old, content)

    return step


def _strip(content: str, start: int, stop: int) -> Step:
    """Take at most `start` times the character `content` off a token's start, and at most `stop` times off its end."""

    def step(piece: Piece, first: bool) -> Piece:
        """Give the text without those characters; bytes stay."""
        if isinstance(piece, bytes):
            return piece
        low, high = 0, len(piece)
        while low < high and low < start and piece[low] == content:
            low += 1
        while high > low and len(piece) - high < stop and piece[high - 1] == content:
            high -= 1
        return piece[low:high]

    return step


_WORD_PIECE_CLEANUP = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"),
    (" 'm", "'m"), (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def _word_piece(prefix: str, cleanup: bool) -> Step:
    """Put a space before each token but the first, unless it begins with `prefix`, which is then taken off.

    cleanup: also close up English punctuation and contractions.
    """

    def step(piece: Piece, first: bool) -> Piece:
        """Give the text with its space; bytes stay."""
        if isinstance(piece, bytes):
            return piece
        if not first:
            piece = piece[len(prefix) :] if piece.startswith(prefix) else " " + piece
        for old, new in _WORD_PIECE_CLEANUP if cleanup else ():
            piece = piece.replace(old, new)
        return piece

    return step


class PieceSource(Protocol):
    """What a Detokenizer asks of a tokenizer."""

    def piece(self, token_id: int, first: bool, skip_special_tokens: bool) -> bytes | None:
        """Return the bytes of a token; None if it is no part of the text."""
        ...

    @property
    def strip(self) -> tuple[str, int]:
        """A character and how many of it are taken off the start of the text."""
        ...


class Detokenizer:
    """Turn token ids into text as they come.

    What `push` returned, with what `finish` returns, is the decoded text; each part is well-formed UTF-8. Bytes that
    begin a character wait for the rest of it; a byte that cannot belong to any character becomes U+FFFD.
    """

    def __init__(self, source: PieceSource, continuation: bool, skip_special_tokens: bool = True) -> None:
        """continuation: the text goes on after another, so the space before its first word stays."""
        self._source = source
        self._skip_special_tokens = skip_special_tokens
        self._first = not continuation
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip, count = source.strip
        self._strip_left = 0 if continuation else count

    def push(self, token_id: int) -> str:
        """Return the text that this token completes."""
        piece = self._source.piece(token_id, self._first, self._skip_special_tokens)
        if piece is None:
            return ""
        self._first = False
        return self._stripped(self._utf8.decode(piece))

    def finish(self) -> str:
        """Return U+FFFD for a character that was begun and will not be completed, else nothing."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if not self._strip_left or not text:
            return text
        count = 0
        while count < min(self._strip_left, len(text)) and text[count] == self._strip:
            count += 1
        self._strip_left = self._strip_left - count if count == len(text) else 0
        return text[count:]
