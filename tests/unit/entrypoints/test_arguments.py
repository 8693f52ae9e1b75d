"""The flags and keywords of an engine: both forms of the offload settings are one document."""

import argparse
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvllm.config.offload import OffloadConfig
from pyvllm.entrypoints.arguments import (
    OneLineParser,
    add_engine_arguments,
    engine_config,
    flag,
    offload_from,
    one_line,
    readable_int,
)
from pyvllm.errors import InvalidArgument

FLAGS_AND_DOCUMENTS = [
    (["--offload-backend", "uva"], {"offload_backend": "uva"}),
    (["--cpu-offload-gb", "1.5"], {"uva": {"cpu_offload_gb": 1.5}}),
    (["--cpu-offload-gb=0"], {"uva": {"cpu_offload_gb": 0}}),
    (["--cpu_offload_gb", "2"], {"uva": {"cpu_offload_gb": 2}}),
    (["--cpu-offload-params", "mlp", "qkv_proj"], {"uva": {"cpu_offload_params": ["mlp", "qkv_proj"]}}),
    (["--cpu-offload-params", ""], {"uva": {"cpu_offload_params": [""]}}),
    (["--offload-group-size", "4"], {"prefetch": {"offload_group_size": 4}}),
    (
        ["--offload-group-size", "4", "--offload-num-in-group", "2", "--offload-prefetch-step", "3"],
        {"prefetch": {"offload_group_size": 4, "offload_num_in_group": 2, "offload_prefetch_step": 3}},
    ),
    (["--offload-params", "experts"], {"prefetch": {"offload_params": ["experts"]}}),
    (
        ["--offload-backend=uva", "--cpu-offload-gb", "1", "--offload-group-size", "8"],
        {"offload_backend": "uva", "uva": {"cpu_offload_gb": 1}, "prefetch": {"offload_group_size": 8}},
    ),
    ([], {}),
]

BAD_FLAGS = [
    (["--offload-backend", "cpu"], "offload_backend"),
    (["--cpu-offload-gb", "ten"], "argument --cpu-offload-gb: invalid float value: 'ten'"),
    (["--cpu-offload-gb", "nan"], "cpu_offload_gb"),
    (["--cpu-offload-gb", "inf"], "cpu_offload_gb"),
    (["--cpu-offload-gb", "-1"], "cpu_offload_gb"),
    (["--cpu-offload-gb"], "argument --cpu-offload-gb: expected one argument"),
    (["--cpu-offload-params"], "argument --cpu-offload-params: expected at least one argument"),
    (["--offload-group-size", "8.0"], "argument --offload-group-size: invalid int value: '8.0'"),
    (["--offload-group-size", "-1"], "offload_group_size"),
    (
        ["--offload-group-size", "4", "--offload-num-in-group", "5"],
        "offload_num_in_group (5) must be <= offload_group_size (4)",
    ),
    (["--cpu-offload-g", "1"], "unknown argument '--cpu-offload-g' (did you mean --cpu-offload-gb?)"),
    (["--threads", "1", "--threads", "2"], "--threads was given 2 times; give it once"),
    (["--cpu-offload-gb", "1", "--cpu_offload_gb=2"], "--cpu-offload-gb was given 2 times"),
    (["--offload-config", '{"uva": {"cpu_offload_GB": 10}}'], "uva.cpu_offload_GB is not a known key"),
    (["--device", "gpu"], "device must be one of auto, cpu, cuda; got 'gpu'"),
    (["--dtype", "int8"], "dtype must be one of"),
    (["--max-model-len", "0"], "max_model_len"),
    (["--gpu-memory-utilization", "1.5"], "gpu_memory_utilization must be in (0, 1], got 1.5"),
    (["--cpu-kernels", "sse2"], "cpu_kernels must be one of auto, avx512, avx2, torch; got 'sse2'"),
    (["--gguf-weights", "packed"], "gguf_weights must be one of auto, expanded, stored; got 'packed'"),
]


def config_of(argv):
    parser = OneLineParser(prog="test")
    add_engine_arguments(parser)
    return engine_config(parser.parse(argv), "model")


@pytest.mark.parametrize(("argv", "document"), FLAGS_AND_DOCUMENTS)
def test_flags_and_document_make_the_same_configuration(argv, document):
    text = json.dumps(document)
    assert config_of(argv).offload == config_of(["--offload-config", text]).offload == OffloadConfig.from_json(text)


@pytest.mark.parametrize(("argv", "text"), BAD_FLAGS)
def test_bad_flags_are_refused_in_one_line_that_names_them(argv, text):
    with pytest.raises(InvalidArgument) as refusal:
        config_of(argv)
    assert text in one_line(refusal.value)


@pytest.mark.parametrize("argv", [argv for argv, _ in FLAGS_AND_DOCUMENTS if argv])
@pytest.mark.parametrize("document", ["{}", ""])
def test_document_and_flag_at_once_are_refused_even_if_they_agree(argv, document):
    with pytest.raises(InvalidArgument, match=r"--offload-config and --.* were both given"):
        config_of(["--offload-config", document, *argv])


NAMES = st.text(min_size=1, max_size=8).filter(lambda text: not text.startswith("-") and text.isprintable())


@given(
    flat=st.fixed_dictionaries(
        {},
        optional={
            "offload_backend": st.sampled_from(["auto", "uva", "prefetch"]),
            "cpu_offload_gb": st.floats(0, 1e6),
            "cpu_offload_params": st.lists(NAMES, min_size=1, max_size=3),
            "offload_group_size": st.integers(0, 6),
            "offload_num_in_group": st.integers(1, 6),
            "offload_prefetch_step": st.integers(0, 3),
            "offload_params": st.lists(NAMES, min_size=1, max_size=3),
        },
    )
)
def test_flags_keywords_and_document_agree_on_outcome_and_value(flat):
    """The document is built here by hand, section by section."""
    document = {}
    if "offload_backend" in flat:
        document["offload_backend"] = flat["offload_backend"]
    document["uva"] = {name: value for name, value in flat.items() if name.startswith("cpu_")}
    prefetch = ("offload_group_size", "offload_num_in_group", "offload_prefetch_step", "offload_params")
    document["prefetch"] = {name: flat[name] for name in prefetch if name in flat}
    argv = list(itertools.chain(*([flag(name), *words(value)] for name, value in flat.items())))
    expected = outcome(lambda: OffloadConfig.from_json(json.dumps(document)))
    assert outcome(lambda: config_of(argv).offload) == expected
    assert outcome(lambda: offload_from(None, flat, str)) == expected


def words(value):
    return value if isinstance(value, list) else [str(value)]


def outcome(make):
    try:
        return make()
    except InvalidArgument as error:
        return str(error)


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("4k", 4000), ("4K", 4096), ("25.6k", 25600), ("1G", 2**30), ("1.5g", 1_500_000_000), ("0", 0)],
)
def test_integer_suffixes_are_vllms(text, value):
    assert readable_int(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5K", "1.0001k", "1e3", "k4", "4kk", "1.5", "0x10"])
def test_integer_that_is_not_whole_or_not_one_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="invalid integer"):
        readable_int(text)


def test_older_dtype_names_mean_the_same():
    assert config_of(["--dtype", "half"]).dtype == "float16"
    assert config_of(["--dtype", "float"]).dtype == "float32"
