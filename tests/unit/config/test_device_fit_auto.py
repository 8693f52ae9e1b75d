"""`vllm_cpp.device_fit.auto`: a bool that stands alone, refused by name beside anything it would choose."""

import json

import pytest

from pyvllm.config.offload import (
    DeviceFitConfig,
    OffloadConfig,
    PrefetchOffloadConfig,
    UVAOffloadConfig,
    VllmCppConfig,
)
from pyvllm.errors import InvalidArgument

AUTO = {"vllm_cpp": {"device_fit": {"auto": True}}}
FIELDS = {
    "uva": {"cpu_offload_gb": 0, "cpu_offload_params": []},
    "prefetch": {
        "offload_group_size": 0,
        "offload_num_in_group": 1,
        "offload_prefetch_step": 1,
        "offload_params": [],
    },
}


def test_auto_stands_with_a_budget_and_comes_back_equal():
    document = {"vllm_cpp": {"device_fit": {"weight_budget_bytes": 5, "auto": True}}}
    config = OffloadConfig.from_json(json.dumps(document))
    assert config.is_fit_automatic and config.weight_budget_bytes == 5
    assert config.to_dict() == {"offload_backend": "auto", **document}
    assert OffloadConfig.from_dict(config.to_dict()) == config


def test_auto_false_is_as_if_it_were_not_there():
    document = {"uva": {"cpu_offload_gb": 1}, "vllm_cpp": {"device_fit": {"auto": False}}}
    config = OffloadConfig.from_dict(document)
    assert not config.is_fit_automatic and config.uva.cpu_offload_gb == 1
    assert config.to_dict()["vllm_cpp"] == {"device_fit": {}}


@pytest.mark.parametrize("value", ["1", "0", '"true"', "null", "[]", "{}"])
def test_anything_but_a_bool_is_refused(value):
    with pytest.raises(InvalidArgument, match=r"vllm_cpp\.device_fit\.auto must be true or false, found"):
        OffloadConfig.from_json(f'{{"vllm_cpp": {{"device_fit": {{"auto": {value}}}}}}}')


@pytest.mark.parametrize(
    ("section", "name"), [(section, name) for section, fields in FIELDS.items() for name in fields]
)
def test_R109_auto_beside_any_written_value_is_refused_by_name_even_a_default(section, name):
    document = {**AUTO, section: {name: FIELDS[section][name]}}
    with pytest.raises(InvalidArgument, match=rf"auto chooses the offload and cannot stand beside {section}\.{name};"):
        OffloadConfig.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"offload_backend": "uva"}, "offload_backend"),
        ({"uva": UVAOffloadConfig(1.0, ("mlp",))}, "uva.cpu_offload_gb, uva.cpu_offload_params"),
        ({"prefetch": PrefetchOffloadConfig(4, 5)}, "prefetch.offload_group_size, prefetch.offload_num_in_group"),
    ],
)
def test_a_config_built_in_python_is_held_to_the_same_rule(fields, names):
    with pytest.raises(InvalidArgument) as refused:
        OffloadConfig(vllm_cpp=VllmCppConfig(DeviceFitConfig(auto=True)), **fields)
    assert f"beside {names}; remove" in str(refused.value)
