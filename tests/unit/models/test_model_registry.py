"""The registry: pyvllm's own table, and architectures that an installed package adds through a real entry point."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from pyvllm.errors import ModelLoadError
from pyvllm.models.registry import ModelEntry, lookup
from tests.tiny_models import ARCHITECTURES

OUTSIDER = """
from pyvllm.config.model import single
from pyvllm.models.registry import ModelEntry

def weight_specs(config, dtype):
    return [single("model.w", None, dtype, (2, 3))]

class {architecture}:
    pass

entry = ModelEntry({architecture!r}, "{module}:weight_specs", "{module}:{architecture}")
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Give a function that puts a module on the path, with a dist-info that registers some of its attributes."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(module, text, entry_points):
        (tmp_path / f"{module}.py").write_text(text)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entry_points]
        (info / "entry_points.txt").write_text("\n".join(["[pyvllm.models]", *lines]))
        assert version(module) == "1.0"

    return write


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_of_our_architectures_is_known_and_supports_offload(architecture):
    entry = lookup(architecture)
    assert entry.architecture == architecture
    assert entry.supports_weight_offload
    assert entry.model_class().__name__ == architecture


def test_an_unknown_architecture_is_refused_with_those_known_and_the_way_to_add_it():
    with pytest.raises(ModelLoadError) as refusal:
        lookup("OuterForCausalLM")
    text = str(refusal.value)
    assert text.startswith("architecture 'OuterForCausalLM' is not supported; supported: LlamaForCausalLM, ")
    assert all(architecture in text for architecture in ARCHITECTURES)
    assert "an entry point named 'OuterForCausalLM' in group 'pyvllm.models'" in text


def test_an_installed_package_adds_an_architecture_with_offload_off(install):
    install("outsider", OUTSIDER.format(module="outsider", architecture="OuterLM"), [("OuterLM", "outsider:entry")])
    entry = lookup("OuterLM")
    assert not entry.supports_weight_offload
    assert [spec.name for spec in entry.weight_specs(None, "float32")] == ["model.w"]
    assert entry.model_class().__module__ == "outsider"
    with pytest.raises(ModelLoadError, match=r"supported: .*, OuterLM, .* An installed package"):
        lookup("OtherLM")


def test_an_installed_package_cannot_replace_one_of_ours(install):
    text = OUTSIDER.format(module="usurper", architecture="LlamaForCausalLM")
    install("usurper", text, [("LlamaForCausalLM", "usurper:entry")])
    assert lookup("LlamaForCausalLM").model == "pyvllm.models.llama.model:LlamaForCausalLM"


BROKEN = {
    "absent_module": ("X", "no_such_module:entry", "cannot be loaded .ModuleNotFoundError: No module named"),
    "absent_name": ("X", "broken_absent_name:gone", "cannot be loaded .AttributeError"),
    "no_entry": ("X", "broken_no_entry:number", "must be a pyvllm.models.registry.ModelEntry, found int"),
    "other_name": ("X", "broken_other_name:entry", "is for architecture 'Y'; the two names must be equal"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_registration_is_refused_by_name(case, install):
    architecture, value, problem = BROKEN[case]
    text = "from pyvllm.models.registry import ModelEntry\nnumber = 3\nentry = ModelEntry('Y', 'a:b', 'a:c')\n"
    install(f"broken_{case}", text, [(architecture, value)])
    with pytest.raises(ModelLoadError, match=f"architecture 'X': entry point '{value}' .*{problem}"):
        lookup("X")


def test_a_registration_that_fails_while_imported_is_refused_with_its_own_words(install):
    install("failing", "raise RuntimeError('needs a newer compiler')", [("X", "failing:entry")])
    with pytest.raises(ModelLoadError, match=r"cannot be loaded \(RuntimeError: needs a newer compiler\)"):
        lookup("X")


def test_an_architecture_registered_by_two_packages_is_refused_with_both(install):
    for module in ("first_one", "second_one"):
        install(module, OUTSIDER.format(module=module, architecture="X"), [("X", f"{module}:entry")])
    with pytest.raises(ModelLoadError, match=r"more than once \(first_one:entry, second_one:entry\)"):
        lookup("X")


def test_an_entry_that_points_nowhere_says_where_it_points():
    entry = ModelEntry("X", weights="no_such_module:weight_specs", model="pyvllm.models.llama.model:Nothing")
    with pytest.raises(ModelLoadError, match="architecture 'X': its entry names 'no_such_module:weight_specs'"):
        entry.weight_specs(None, "float32")
    with pytest.raises(ModelLoadError, match=r"its entry names 'pyvllm\.models\.llama\.model:Nothing'"):
        entry.model_class()
    with pytest.raises(ModelLoadError, match=r"'nothing', which cannot be imported .*'module:name'"):
        ModelEntry("X", weights="nothing", model="").weight_specs(None, "float32")


def test_an_entry_that_gives_something_else_is_refused():
    entry = ModelEntry("X", weights="builtins:max", model="math:pi")
    with pytest.raises(ModelLoadError, match="builtins:max must return a list of WeightSpec, found str"):
        entry.weight_specs("a", "b")
    with pytest.raises(ModelLoadError, match=r"math:pi must be a class, found 3\.14"):
        entry.model_class()


LIST_WEIGHTS = """
import sys
from pyvllm.config.model import model_config
from pyvllm.models.registry import lookup
document = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 4, "vocab_size": 9,
            "num_experts": 2, "num_experts_per_tok": 1}
for architecture in sys.argv[1:]:
    config = model_config({"architectures": [architecture], **document}, "config.json")
    assert lookup(architecture).weight_specs(config, "float32")
print(*sorted({"torch", "numpy", "logging", "pydantic", "importlib.metadata", "transformers"} & set(sys.modules)))
"""


def test_listing_weights_imports_nothing_heavy():
    command = [sys.executable, "-c", LIST_WEIGHTS, *ARCHITECTURES]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "\n"
