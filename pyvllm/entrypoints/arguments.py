"""What a user asks for, in either spelling, as one EngineConfig: shared by `LLM`, `pyvllm` and `vllm-server`.

Here are the offload document and vLLM's seven flat offload fields, the flags of an engine, and the parser that speaks
one line. Nothing here reads a model or imports torch.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NoReturn

from pyvllm.config.engine import CPU_KERNELS, DEVICES, GGUF_WEIGHTS, SCHEDULING_POLICIES, EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.errors import InvalidArgument

#: vLLM's flat offload fields and where each stands in the document. Source: vLLM 0.33, `EngineArgs`.
FLAT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "offload_backend": ("offload_backend",),
    "cpu_offload_gb": ("uva", "cpu_offload_gb"),
    "cpu_offload_params": ("uva", "cpu_offload_params"),
    "offload_group_size": ("prefetch", "offload_group_size"),
    "offload_num_in_group": ("prefetch", "offload_num_in_group"),
    "offload_prefetch_step": ("prefetch", "offload_prefetch_step"),
    "offload_params": ("prefetch", "offload_params"),
}

#: vLLM's two older names of an element type. Source: vLLM 0.33, `--dtype`.
DTYPE_ALIASES: Mapping[str, str] = {"half": "float16", "float": "float32"}

#: Suffixes of `--max-model-len` and `--kv-cache-memory-bytes`: small letters are decimal, capitals binary.
#: Source: vLLM 0.33, `human_readable_int`.
SUFFIXES: Mapping[str, int] = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip


#: Fields of the C library that are not supported yet, with the texts that ask for nothing.
UNSUPPORTED: Mapping[str, tuple[str, ...]] = {
    "speculative_config": ("",),
    "kv_transfer_config": ("",),
    "limit_mm_per_prompt": ("", "{}"),
}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """End a sentence about an unknown `word` with the nearest known one, or with nothing."""
    near = get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def flat_document(flat: Mapping[str, object]) -> dict[str, object]:
    """Build the offload document that vLLM's flat fields stand for.

    flat: values of keys of FLAT_FIELDS, as many as were given.
    """
    document: dict[str, object] = {}
    for name, value in flat.items():
        *sections, key = FLAT_FIELDS[name]
        place = document
        for section in sections:
            place = document.setdefault(section, {})  # type: ignore[assignment]
        place[key] = value
    return document


def offload_from(document: object, flat: Mapping[str, object], spell: Callable[[str], str]) -> OffloadConfig:
    """Make the OffloadConfig that either form asks for.

    document: JSON text, mapping, OffloadConfig, or None where it was not given; flat: as for `flat_document`.
    spell: turns a field's name into what the user wrote, for the error texts.
    Raises InvalidArgument if both forms were given or if either is bad.
    """
    if document is not None and flat:
        given = ", ".join(spell(name) for name in flat)
        raise InvalidArgument(
            f"{spell('offload_config')} and {given} were both given: they are two forms of the same setting, use one"
        )
    if flat:
        return OffloadConfig.from_dict(flat_document(flat))
    if isinstance(document, OffloadConfig):
        return document
    if isinstance(document, Mapping):
        return OffloadConfig.from_dict(document)
    if document is None or isinstance(document, str):
        return OffloadConfig.from_json(document)
    raise InvalidArgument(
        f"{spell('offload_config')} must be JSON text, a dict or an OffloadConfig, got {type(document).__name__}"
    )


def flag(name: str) -> str:
    """Spell a field as a command line flag."""
    return "--" + name.replace("_", "-")


def one_line(text: object) -> str:
    """Put a message on one line, whatever white space it holds."""
    return " ".join(str(text).split())


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose every complaint is one InvalidArgument.

    As vLLM's: a flag may be written with underscores. Unlike argparse: a flag may not be cut short, and one that is
    given twice is refused, since the first would be accepted and ignored.
    """

    def __init__(self, **settings: object) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})  # type: ignore[arg-type]

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the words of a command line.

        Raises InvalidArgument for anything wrong with them; `--help` prints and raises SystemExit(0).
        """
        words = [_with_dashes(word) for word in argv]
        names = [word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2]
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgument(f"{name} was given {names.count(name)} times; give it once")
        args, unknown = self.parse_known_args(words)
        if unknown:
            known = [option for option in _options(self) if option.startswith("--")]
            raise InvalidArgument(f"unknown argument {unknown[0]!r}{did_you_mean(unknown[0].partition('=')[0], known)}")
        return args

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print and exit with."""
        raise InvalidArgument(message)


def _with_dashes(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _options(parser: argparse.ArgumentParser) -> list[str]:
    found: list[str] = []
    for action in parser._actions:
        found += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found += _options(command)
    return found


def readable_int(text: str) -> int:
    """Read an integer that may end in one of SUFFIXES: `1k` is 1000, `1K` is 1024, `25.6k` is 25600.

    Raises argparse's error type, so that the message names the flag.
    """
    number, unit = (text[:-1], SUFFIXES[text[-1]]) if text[-1:] in SUFFIXES else (text, 1)
    try:
        return int(number) * unit
    except ValueError:
        return _decimal(number, unit, text)


def _decimal(number: str, unit: int, text: str) -> int:
    whole, dot, fraction = number.partition(".")
    digits = whole + fraction
    if not dot or unit not in (10**3, 10**6, 10**9, 10**12) or not (digits.isascii() and digits.isdigit()):
        raise argparse.ArgumentTypeError(f"invalid integer {text!r}: digits, or digits with one of k m g t K M G T")
    scale: int = 10 ** len(fraction)
    if int(digits) * unit % scale:
        raise argparse.ArgumentTypeError(f"invalid integer {text!r}: it is not a whole number")
    return int(digits) * unit // scale


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that an engine needs, apart from its model, under vLLM's names."""
    add = parser.add_argument_group("engine").add_argument
    add("--dtype", default="auto", help="auto (the checkpoint's own), float32, bfloat16 or float16")
    add("--device", default="auto", help=f"one of {', '.join(DEVICES)}; auto takes an accelerator first")
    length = "tokens of prompt and answer together, such as 4096, 4k or 4K (default: the model's own limit)"
    add("--max-model-len", type=readable_int, metavar="N", help=length)
    fraction = "fraction of the device's free memory that may be used (default: 0.92)"
    add("--gpu-memory-utilization", type=float, default=0.92, metavar="F", help=fraction)
    cache = "bytes of the key-value cache (default: sized by the device)"
    add("--kv-cache-memory-bytes", type=readable_int, default=0, metavar="N", help=cache)
    add("--block-size", type=int, default=32, metavar="N", help="tokens in a cache block, 16 or more (default: 32)")
    blocks = "blocks of the key-value cache (default: sized by the bytes)"
    add("--num-gpu-blocks-override", type=int, metavar="N", help=blocks)
    add("--max-num-seqs", type=int, default=8, metavar="N", help="requests in a step at most (default: 8)")
    batched = "tokens in a step at most, such as 2048 or 2K (default: 2048; 4096 for a mixture of experts)"
    add("--max-num-batched-tokens", type=readable_int, metavar="N", help=batched)
    add("--scheduling-policy", default="fcfs", help=f"one of {', '.join(SCHEDULING_POLICIES)} (default: fcfs)")
    prefix = "whether requests share the cache of equal prefixes (default: on)"
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True, help=prefix)
    add("--threads", type=int, metavar="N", help="compute and reader threads (default: usable cores)")
    add("--tokenizer-config-path", metavar="FILE", help="a tokenizer_config.json to use instead of the model's")
    quantised = f"a quantised GGUF's weights, one of {', '.join(GGUF_WEIGHTS)} (default: auto, what is faster and fits)"
    add("--gguf-weights", default="auto", help=quantised)
    computes = f"what computes on the CPU, one of {', '.join(CPU_KERNELS)} (default: auto, the first that can)"
    add("--cpu-kernels", default="auto", help=computes)
    for name, values in UNSUPPORTED.items():
        add(flag(name), metavar="JSON", help=f"not supported: {' or '.join(map(repr, values))} only")
    add("--language-model-only", action="store_true", help="leave out all but the language model; there is no more")
    jump = "not supported: off only"
    add("--enable-jump-forward", action=argparse.BooleanOptionalAction, default=False, help=jump)
    add_offload_arguments(parser)


def add_offload_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--offload-config` and vLLM's seven flat offload flags; none has a default, so that given means given."""
    add = parser.add_argument_group("weight offload", "either the document or the flags below it").add_argument
    add("--offload-config", metavar="JSON", help="vLLM's OffloadConfig as one JSON object")
    add("--offload-backend", metavar="NAME", help="auto, uva or prefetch")
    add("--cpu-offload-gb", type=float, metavar="GIB", help="uva: GiB of weights to keep in host memory")
    only = "only weights with one of these name segments"
    add("--cpu-offload-params", nargs="+", metavar="SEGMENT", help=f"uva: {only}")
    add("--offload-group-size", type=int, metavar="N", help="prefetch: layers in a group; 0 is off")
    add("--offload-num-in-group", type=int, metavar="N", help="prefetch: layers of each group to stream")
    add("--offload-prefetch-step", type=int, metavar="N", help="prefetch: layers to copy ahead")
    add("--offload-params", nargs="+", metavar="SEGMENT", help=f"prefetch: {only}")


def engine_config(args: argparse.Namespace, model: str) -> EngineConfig:
    """Make the EngineConfig that parsed flags ask for.

    Raises InvalidArgument, naming what is wrong; no file is opened.
    """
    flat = {name: getattr(args, name) for name in FLAT_FIELDS if getattr(args, name) is not None}
    for name, values in UNSUPPORTED.items():
        value = getattr(args, name)
        if value is not None and value.strip() not in values:
            raise InvalidArgument(f"{flag(name)} is not supported yet: leave it out; got {value!r:.80}")
    if args.enable_jump_forward:
        raise InvalidArgument("--enable-jump-forward is not supported yet: leave it out")
    return EngineConfig(
        model=model,
        tokenizer_config_path=args.tokenizer_config_path,
        device=args.device,
        dtype=DTYPE_ALIASES.get(args.dtype, args.dtype),
        max_model_len=args.max_model_len,
        gpu_memory_utilization=args.gpu_memory_utilization,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        block_size=args.block_size,
        num_blocks=args.num_gpu_blocks_override,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        scheduling_policy=args.scheduling_policy,
        enable_prefix_caching=args.enable_prefix_caching,
        threads=args.threads,
        gguf_weights=args.gguf_weights,
        cpu_kernels=args.cpu_kernels,
        offload=offload_from(args.offload_config, flat, flag),
    )
