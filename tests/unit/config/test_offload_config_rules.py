"""DESIGN section 3, one test for each sentence."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

import pyvllm
from pyvllm.config.offload import (
    DeviceFitConfig,
    OffloadConfig,
    PrefetchOffloadConfig,
    UVAOffloadConfig,
    VllmCppConfig,
)
from pyvllm.errors import InvalidArgument


def refusal(document):
    with pytest.raises(InvalidArgument) as error:
        OffloadConfig.from_json(document)
    return str(error.value)


def group(number):
    return f'{{"prefetch":{{"offload_group_size":{number}}}}}'


def budget(number):
    return f'{{"uva":{{"cpu_offload_gb":{number}}}}}'


@pytest.mark.parametrize("text", [None, "", " ", "\n\t \r\n"])
def test_null_empty_and_blank_text_mean_no_offload(text):
    config = OffloadConfig.from_json(text)
    assert config == OffloadConfig()
    assert (config.resolved_backend, config.is_offloading_enabled, config.warnings) == (None, False, ())


@pytest.mark.parametrize("text", ["[]", "null", "3", '"{}"', "true", "NaN"])
def test_everything_else_must_be_one_object(text):
    assert "the document must be an object" in refusal(text)


@pytest.mark.parametrize("text", ["{}{}", "{", "\ufeff{}", "{}\x00", "{,}", '{"uva":{},}', "// x\n{}", "\ud800"])
def test_text_that_is_not_json_is_refused_as_such(text):
    assert refusal(text).startswith("offload_config is not valid")


def test_deep_nesting_is_refused_and_the_process_lives():
    assert "nested too deeply" in refusal('{"uva":' * 200_000)
    assert "nested too deeply" in refusal("[" * 200_000)


@pytest.mark.parametrize(
    ("document", "path", "near"),
    [
        ('{"offload_backand":"uva"}', "offload_backand", "'offload_backend'"),
        ('{"uva":{"cpu_offload_GB":10}}', "uva.cpu_offload_GB", "'cpu_offload_gb'"),
        ('{"prefetch":{"group_size":8}}', "prefetch.group_size", "'offload_group_size'"),
        ('{"vllm_cpp":{"devicefit":{}}}', "vllm_cpp.devicefit", "'device_fit'"),
        ('{"vllm_cpp":{"device_fit":{"budget":1}}}', "vllm_cpp.device_fit.budget", "'weight_budget_bytes'"),
        ('{"cpu_offload_gb":10}', "cpu_offload_gb", "'uva.cpu_offload_gb'"),
    ],
)
def test_an_unknown_key_is_refused_at_every_level_with_the_nearest_known_key(document, path, near):
    assert f"{path} is not a known key; did you mean {near}?" in refusal(document)


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ('{"uva":{},"uva":{}}', "the document: key 'uva'"),
        ('{"prefetch":{"offload_group_size":8,"offload_group_size":8}}', "prefetch: key 'offload_group_size'"),
        ('{"vllm_cpp":{"device_fit":{},"device_fi\\u0074":{}}}', "vllm_cpp: key 'device_fit'"),
    ],
)
def test_a_repeated_key_is_refused_at_every_level(document, where):
    assert f"{where} is given twice" in refusal(document)


FIELDS = {
    "uva.cpu_offload_gb": '{"uva":{"cpu_offload_gb":%s}}',
    "uva.cpu_offload_params": '{"uva":{"cpu_offload_params":%s}}',
    "prefetch.offload_group_size": '{"prefetch":{"offload_group_size":%s}}',
    "prefetch.offload_num_in_group": '{"prefetch":{"offload_num_in_group":%s}}',
    "prefetch.offload_prefetch_step": '{"prefetch":{"offload_prefetch_step":%s}}',
    "prefetch.offload_params": '{"prefetch":{"offload_params":%s}}',
    "vllm_cpp.device_fit.weight_budget_bytes": '{"vllm_cpp":{"device_fit":{"weight_budget_bytes":%s}}}',
    "offload_backend": '{"offload_backend":%s}',
    "uva": '{"uva":%s}',
    "prefetch": '{"prefetch":%s}',
    "vllm_cpp": '{"vllm_cpp":%s}',
    "vllm_cpp.device_fit": '{"vllm_cpp":{"device_fit":%s}}',
}


@pytest.mark.parametrize("value", ["null", "true", "false", '"8"', '""', "NaN", "-Infinity", "-1", "1e999"])
@pytest.mark.parametrize("path", FIELDS)
def test_null_bool_string_and_impossible_numbers_are_refused_for_every_field(path, value):
    text = refusal(FIELDS[path] % value)
    assert text.startswith(f"offload_config: {path} ")
    assert value.strip('"') in text


@pytest.mark.parametrize("number", ["8.0", "8e0", "0.8e1", "80E-1", "800.00e-2", "8"])
def test_a_whole_number_is_an_integer_however_it_is_written(number):
    assert OffloadConfig.from_json(group(number)).prefetch.offload_group_size == 8


@pytest.mark.parametrize("number", ["8.5", "8.00000000000000000000001", "1e-400", "85e-1", "8e-99999999999999999999"])
def test_a_fraction_where_an_integer_belongs_is_refused(number):
    assert "must be an integer >= 0" in refusal(group(number))


def test_a_number_with_fraction_or_exponent_must_be_below_two_to_the_63():
    assert OffloadConfig.from_json(group("9223372036854775807.0")).prefetch.offload_group_size == 2**63 - 1
    assert OffloadConfig.from_json(group("1e18")).prefetch.offload_group_size == 10**18
    for number in ("9223372036854775808.0", "1e19", "1e400", "1e999999999", f"1e{'9' * 5000}"):
        assert "below 2**63" in refusal(group(number))


def test_plain_digits_may_be_as_long_as_python_can_write_back():
    assert OffloadConfig.from_json(group("9" * 4300)).prefetch.offload_group_size == int("9" * 4300)
    text = refusal(group("9" * 4301))
    assert "at most 4300 digits" in text
    assert len(text) < 300


@pytest.mark.parametrize("number", ["0e999999999999999999999", "-0", "-0.0", "0e0", "0.000"])
def test_every_zero_is_zero(number):
    config = OffloadConfig.from_json(group(number))
    assert repr(config.prefetch.offload_group_size) == "0"
    assert repr(OffloadConfig.from_json(budget(number)).uva.cpu_offload_gb) == "0.0"


@pytest.mark.parametrize("number", ["1e308", "1e400", "Infinity", "1.7e299", "9" * 400])
def test_a_budget_whose_bytes_are_not_finite_is_refused(number):
    assert "uva.cpu_offload_gb is too large" in refusal(budget(number))


def test_the_budget_is_gib_stored_as_float_and_truncated_to_bytes():
    config = OffloadConfig.from_json(budget("1"))
    assert (repr(config.uva.cpu_offload_gb), config.uva_max_bytes) == ("1.0", 1073741824)
    assert OffloadConfig.from_json(budget("0.1")).uva_max_bytes == 107374182
    assert OffloadConfig.from_json(budget("4.6e-10")).uva_max_bytes == 0


def test_a_lone_surrogate_is_refused_anywhere():
    assert "uva.cpu_offload_params[1]" in refusal('{"uva":{"cpu_offload_params":["a","\\udfff"]}}')
    assert "'\\udfff'" in refusal('{"\\udfff":1}')
    assert "'\\ud800'" in refusal('{"offload_backend":"\\ud800"}')
    for text in (refusal('{"\\udfff":1}'), refusal('{"offload_backend":"\\ud800"}')):
        text.encode()


def test_selectors_are_sorted_and_without_duplicates():
    config = OffloadConfig.from_json('{"uva":{"cpu_offload_params":["w2","experts","w2","","é"]}}')
    assert config.uva.cpu_offload_params == ("", "experts", "w2", "é")


def test_all_field_errors_come_together_and_before_the_rules_across_fields():
    text = refusal(
        '{"offload_backend":"disk","uva":{"cpu_offload_gb":-1,"gb":2},"bogus":0,'
        '"prefetch":{"offload_group_size":4,"offload_num_in_group":5,"offload_prefetch_step":-1}}'
    )
    order = ["offload_backend", "uva.cpu_offload_gb", "uva.gb", "prefetch.offload_prefetch_step", "bogus is"]
    positions = [text.index(part) for part in order]
    assert positions == sorted(positions)
    assert "offload_num_in_group (5)" not in text


@pytest.mark.parametrize("backend", ["auto", "uva", "prefetch"])
def test_the_first_broken_rule_across_fields_speaks_alone(backend):
    fields = '"offload_group_size":4,"offload_num_in_group":5,"offload_prefetch_step":0'
    text = refusal(f'{{"offload_backend":"{backend}","prefetch":{{{fields}}}}}')
    assert text == "offload_num_in_group (5) must be <= offload_group_size (4)"
    text = refusal(f'{{"offload_backend":"{backend}","prefetch":{{{fields.replace("5", "4")}}}}}')
    assert text == "offload_prefetch_step (0) must be >= 1 when prefetch offloading is enabled (offload_group_size > 0)"


def test_the_rules_across_fields_rest_while_prefetch_is_off():
    config = OffloadConfig.from_json('{"prefetch":{"offload_num_in_group":5,"offload_prefetch_step":0}}')
    assert config.resolved_backend is None


def test_a_named_backend_is_resolved_even_when_it_is_off():
    config = OffloadConfig.from_json('{"offload_backend":"uva","prefetch":{"offload_group_size":8}}')
    assert (config.resolved_backend, config.is_offloading_enabled) == ("uva", False)
    assert config.warnings == (
        "Prefetch offload fields are set but offload_backend='uva'. Prefetch settings will be ignored.",
    )


def test_the_selectors_are_those_of_the_resolved_backend():
    both = {"uva": {"cpu_offload_gb": 1, "cpu_offload_params": ["a"]}, "prefetch": {"offload_params": ["b"]}}
    assert OffloadConfig.from_dict(both).params == ("a",)
    both["prefetch"]["offload_group_size"] = 2
    assert OffloadConfig.from_dict(both).params == ("b",)
    assert OffloadConfig.from_dict({"uva": {"cpu_offload_params": ["a"]}}).params == ()


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("{}", None),
        ('{"offload_backend":"auto"}', None),
        ('{"uva":{"cpu_offload_gb":1}}', None),
        ('{"offload_backend":"uva"}', "offload is off: cpu_offload_gb is 0"),
        ('{"uva":{"cpu_offload_params":["a"]}}', "offload is off: cpu_offload_gb is 0"),
        ('{"prefetch":{"offload_params":["a"]}}', "offload is off: offload_group_size is 0"),
        ('{"prefetch":{"offload_num_in_group":2}}', "offload is off: offload_group_size is 0"),
    ],
)
def test_a_document_that_asks_but_leaves_offload_off_has_the_reason(document, reason):
    assert OffloadConfig.from_json(document).disabled_reason == reason


@pytest.mark.parametrize(("given", "budget_bytes"), [(1 << 30, 1 << 30), (0, None), (None, None)])
def test_a_device_budget_of_zero_or_none_asks_the_device(given, budget_bytes):
    fit = {} if given is None else {"weight_budget_bytes": given}
    config = OffloadConfig.from_dict({"vllm_cpp": {"device_fit": fit}})
    assert config.weight_budget_bytes == budget_bytes
    assert config.to_dict()["vllm_cpp"] == {"device_fit": fit}


@pytest.mark.parametrize(
    "build",
    [
        lambda: UVAOffloadConfig(cpu_offload_gb=True),
        lambda: UVAOffloadConfig(cpu_offload_gb=float("nan")),
        lambda: UVAOffloadConfig(cpu_offload_gb=10**400),
        lambda: UVAOffloadConfig(cpu_offload_params="experts"),
        lambda: UVAOffloadConfig(cpu_offload_params=["\ud800"]),
        lambda: PrefetchOffloadConfig(offload_group_size=8.5),
        lambda: PrefetchOffloadConfig(offload_group_size=10**5000),
        lambda: PrefetchOffloadConfig(offload_num_in_group=0),
        lambda: DeviceFitConfig(weight_budget_bytes=-1),
        lambda: VllmCppConfig(device_fit={"weight_budget_bytes": 1}),
        lambda: OffloadConfig(uva={"cpu_offload_gb": 1}),
        lambda: OffloadConfig(offload_backend="Uva"),
        lambda: OffloadConfig(prefetch=PrefetchOffloadConfig(4, 5)),
        lambda: dataclasses.replace(OffloadConfig(), offload_backend="prefetch"),
        lambda: dataclasses.replace(UVAOffloadConfig(1), cpu_offload_gb=-1),
        lambda: OffloadConfig.from_json(b"{}"),
        lambda: OffloadConfig.from_dict({"uva": None}),
        lambda: OffloadConfig.from_dict({1: 2}),
    ],
)
def test_direct_construction_and_replace_keep_the_same_rules(build):
    with pytest.raises(InvalidArgument):
        build()


def test_direct_construction_normalises_as_json_does():
    built = OffloadConfig(
        uva=UVAOffloadConfig(-0.0, ["b", "a", "b"]), prefetch=PrefetchOffloadConfig(8.0, offload_num_in_group=2)
    )
    text = '{"uva":{"cpu_offload_params":["a","b"]},"prefetch":{"offload_group_size":8,"offload_num_in_group":2}}'
    assert built == OffloadConfig.from_json(text)
    assert json.dumps(built.to_dict()) == json.dumps(OffloadConfig.from_json(text).to_dict())


def test_a_config_can_neither_be_changed_nor_left_unhashable():
    config = OffloadConfig.from_json(budget("1"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.uva.cpu_offload_gb = 2
    assert len({config, OffloadConfig.from_json(budget("1.0"))}) == 1


def test_a_document_of_thousands_of_mistakes_gives_a_short_answer():
    text = refusal(json.dumps({f"cpu_offload_{index}": 0 for index in range(5000)}))
    assert "more problems" in text
    assert len(text) < 20_000


def loaded_by_a_refusal(module, call, names):
    root = str(Path(pyvllm.__file__).parents[1])
    code = (
        f"import sys; sys.path.insert(0, {root!r})\n"
        f"from pyvllm.config.{module} import *\n"
        f"try: {call}('{{\"bogus\":1}}')\n"
        "except ValueError: pass\n"
        f"print([name for name in {names!r} if name in sys.modules])"
    )
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


SLOW = ("torch", "numpy", "pydantic", "logging", "typing", "difflib", "pathlib", "threading")


def test_a_refusal_loads_nothing_slow():
    assert loaded_by_a_refusal("offload", "OffloadConfig.from_json", SLOW) == "[]\n"


def test_a_refusal_by_the_rules_alone_does_not_load_dataclasses_either():
    assert loaded_by_a_refusal("offload_rules", "judge_text", (*SLOW, "dataclasses", "inspect")) == "[]\n"
