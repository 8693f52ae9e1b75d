"""`pyvllm plan` as a user calls it: fits, another machine's room, the bus, names, comparisons, files."""

import json

import pytest

from pyvllm.entrypoints.plan_compare import comparison_rows
from tests.plan.headers import LLAMA_3_70B, QWEN3_30B_A3B, write_headers
from tests.server.commands import PYVLLM, run

ROOM = ("--device-bytes", "8G", "--host-bytes", "1T", "--max-model-len", "4096")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_headers({**QWEN3_30B_A3B, "num_hidden_layers": 8}, tmp_path_factory.mktemp("moe") / "m", 3))


def plan(model, *words):
    done = run(PYVLLM, "plan", model, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*words):
    done = run(PYVLLM, "plan", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pyvllm: fatal: ") and done.stderr.count("\n") == 1
    return done.stderr


def test_fit_is_printed_as_the_configuration_that_gives_the_same_plan(model):
    chosen = json.loads(plan(model, *ROOM, "--fit", "--json"))
    again = json.loads(plan(model, *ROOM, "--json", "--offload-config", chosen["fit"]["offload_config"]))
    assert chosen["planned"]["host_bytes"] > 0 and chosen["config"]["uva"]["cpu_offload_params"] == ["experts"]
    assert again["placements"] == chosen["placements"] and again["config"] == chosen["config"]
    assert f"--offload-config '{chosen['fit']['offload_config']}'" in plan(model, *ROOM, "--fit")


def test_fit_is_the_documents_auto(model):
    auto = '{"vllm_cpp": {"device_fit": {"auto": true}}}'
    assert plan(model, *ROOM, "--json", "--offload-config", auto) == plan(model, *ROOM, "--json", "--fit")


def test_a_model_that_fits_is_given_no_offload(model):
    chosen = json.loads(plan(model, "--device-bytes", "64G", "--host-bytes", "1T", "--fit", "--json"))
    assert chosen["enabled"] is False and chosen["fit"]["offload_config"] == "{}"
    assert chosen["fit"]["reason"].startswith("nothing is offloaded: ")


def test_device_bytes_is_the_capacity_and_its_share_is_never_exceeded(model):
    capacity = json.loads(plan(model, *ROOM, "--fit", "--json"))["capacity"]
    assert (capacity["device_bytes"], capacity["source"]) == (8 * 2**30, "--device-bytes")
    assert (capacity["host_bytes"], capacity["host_source"]) == (2**40, "--host-bytes")
    assert capacity["usable_device_bytes"] == int(8 * 2**30 * 0.92)
    assert capacity["spare_device_bytes"] == capacity["usable_device_bytes"] - capacity["needed_device_bytes"] >= 0


def test_the_bus_bounds_the_rate_by_bytes_of_ten_to_the_ninth(model):
    document = json.loads(plan(model, *ROOM, "--fit", "--json", "--bus-gb-per-s", "25"))
    per_token, bus = document["bus_bytes_per_token"], document["bus"]
    assert bus["gb_per_s"] == 25
    for name in ("worst", "expected"):
        assert bus["tokens_per_s"][name] == pytest.approx(25e9 / per_token[name])
    assert bus["dense_bytes"]["expected"] + bus["experts_bytes"]["expected"] == per_token["expected"]
    assert f"at 25 GB/s one sequence gets at most: worst {bus['tokens_per_s']['worst']:,.2f} tokens/s" in plan(
        model, *ROOM, "--fit", "--bus-gb-per-s", "25"
    )


def test_tables_have_every_layer_and_kind_and_names_only_on_request(model):
    document = json.loads(plan(model, *ROOM, "--fit", "--json"))
    text, named = plan(model, *ROOM, "--fit"), plan(model, *ROOM, "--fit", "--names")
    for sums in (*document["by_layer"], *document["by_kind"]):
        for place in ("device", "host"):
            assert f"{sums[f'{place}_bytes']:,}" in text
    name = "model.layers.5.mlp.experts.w13_weight"
    assert name in named and name not in text
    assert "no entry of cpu_offload_params selects it (experts)" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["m", "--bus-gb-per-s", "0"], "--bus-gb-per-s must be a number above 0, got 0.0"),
        (["m", "--bus-gb-per-s", "nan"], "--bus-gb-per-s must be a number above 0, got nan"),
        (["m", "--device-bytes", "-1"], "--device-bytes must be at least 0, got -1"),
        (["m", "--fit", "--cpu-offload-gb", "1"], "device_fit.auto chooses the offload and cannot stand beside uva."),
        (["--compare", "a.json", "/no/such"], "--compare a.json: cannot be read"),
    ],
)
def test_bad_words_are_refused_by_name(words, text):
    assert text in refused(*words)


def test_an_impossible_fit_is_refused_with_the_numbers(model):
    text = refused(model, "--device-bytes", "1G", "--host-bytes", "1T", "--max-model-len", "4096", "--fit")
    assert "can never free enough" in text and "the assumed device has 987842478 by --device-bytes" in text


def test_two_answers_to_what_the_device_has_are_refused(model):
    document = '{"vllm_cpp": {"device_fit": {"weight_budget_bytes": 5}}}'
    assert "give one" in refused(model, *ROOM, "--offload-config", document)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    fit = folder / "fit.json"
    fit.write_text(plan(model, *ROOM, "--fit", "--json", "--bus-gb-per-s", "25"))
    more = folder / "more.json"
    document = '{"uva": {"cpu_offload_gb": 9, "cpu_offload_params": ["experts"]}}'
    more.write_text(plan(model, *ROOM, "--json", "--offload-config", document, "--bus-gb-per-s", "25"))
    return fit, more


def test_saved_plans_are_compared_side_by_side_without_the_model(saved):
    done = run(PYVLLM, "plan", "--compare", *map(str, saved))
    one, other = (json.loads(path.read_text()) for path in saved)
    host = [document["planned"]["host_bytes"] for document in (one, other)]
    line = next(line for line in done.stdout.splitlines() if line.startswith("host bytes"))
    assert line.split()[2:] == [f"{host[0]:,}", f"{host[1]:,}", f"{host[1] - host[0]:+,}"]
    assert str(saved[0]) in done.stdout.splitlines()[0] and "bus bound, expected" in done.stdout


def test_offload_documents_are_compared_on_a_model(model, saved, tmp_path):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, path in zip(files, saved, strict=True):
        file.write_text(json.loads(path.read_text())["fit"]["offload_config"])
    planned = json.loads(run(PYVLLM, "plan", model, *ROOM, "--compare", *map(str, files), "--json").stdout)
    for name, path in zip("ab", saved, strict=True):
        assert planned[name]["placements"] == json.loads(path.read_text())["placements"]
    assert "to compare offload documents, give MODEL" in refused("--compare", *map(str, files))


def test_every_figure_of_a_comparison_is_the_difference_of_the_two(saved):
    one, other = (json.loads(path.read_text()) for path in saved)
    rows = comparison_rows(one, other, ["a", "b"])
    numbers = [[int(cell.replace(",", "") or 0) for cell in row[1:]] for row in rows if row[1][:1].isdigit() and row[3]]
    assert len(numbers) > 5 and all(second - first == difference for first, second, difference in numbers)


@pytest.mark.parametrize(
    ("content", "text"),
    [("[1", "is not JSON"), ('{"schema": 2}', "has schema 2; 1 is read"), ('{"schema": 1}', "is no plan of a model"),
     ('{"uva": {"cpu_offload_GB": 1}}', "cpu_offload_GB is not a known key")],
)  # fmt: skip
def test_a_file_that_is_no_plan_is_refused_by_name(model, tmp_path, content, text):
    bad = tmp_path / "bad.json"
    bad.write_text(content)
    message = refused(model, "--compare", str(bad), str(bad))
    assert f"--compare {bad}: " in message and text in message


@pytest.mark.usefixtures("strace")
def test_no_byte_of_a_weight_is_read(tmp_path):
    model = write_headers({**LLAMA_3_70B, "num_hidden_layers": 2}, tmp_path / "m", 1)
    trace, file = tmp_path / "trace", model / "model-00001-of-00001.safetensors"
    header_end = 8 + int.from_bytes(file.read_bytes()[:8] if file.stat().st_size < 2**20 else _first(file), "little")
    run(("strace", "-f", "-y", "-e", "trace=read,pread64,preadv,preadv2,mmap", "-o", str(trace), *PYVLLM), "plan",
        str(model), "--device-bytes", "64G", "--host-bytes", "1T")  # fmt: skip
    lines = [line for line in trace.read_text().splitlines() if file.name in line]
    reads = [int(line.rpartition("= ")[2]) for line in lines]
    assert lines and not [line for line in lines if "mmap" in line]
    assert sum(reads) == header_end


def _first(file):
    with file.open("rb") as opened:
        return opened.read(8)
