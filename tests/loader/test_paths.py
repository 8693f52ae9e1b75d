"""Which paths are a model, which files of a directory are opened, and where a symbolic link may lead."""

import os
import socket
import subprocess
import sys

import pytest

from pyvllm.errors import ModelLoadError
from pyvllm.model_loader.checkpoint import open_model

from .attacks import GOOD
from .files import INDEX, gguf_file, index_file, open_descriptors, tensor, vectors, write_directory

GGUF = gguf_file([], [tensor("x", (8,))], bytes(32))


def refused(path):
    before = open_descriptors()
    with pytest.raises(ModelLoadError) as caught:
        open_model(str(path)).headers()
    assert open_descriptors() == before
    return str(caught.value)


def names(path):
    with open_model(str(path)).headers() as checkpoint:
        return set(checkpoint.tensors)


@pytest.mark.parametrize("path", ["", "/no/such/model", "a\0b", "\ud800", "x" * 5000])
def test_path_that_is_no_path_says_what_a_model_is(path):
    assert "a model is a directory with config.json, safetensors files and tokenizer.json, or one .gguf" in refused(
        path
    )


def test_directory_without_config_says_which_file_to_give(tmp_path):
    (tmp_path / "m.gguf").write_bytes(GGUF)
    assert refused(tmp_path).endswith("or one .gguf file: give the path of its file 'm.gguf'")


def test_safetensors_file_alone_is_no_model(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(GOOD)
    assert "model.safetensors: is not a GGUF file; a model is a directory" in refused(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickle_is_never_read(tmp_path, name):
    path = write_directory(tmp_path / "m", {name: b"\x80\x02."})
    assert refused(path) == f"m: its weights are in '{name}': pickle is never read; convert the weights to safetensors"
    assert refused(f"{path}/{name}") == f"{name}: pickle is never read; convert the weights to safetensors"


def test_pickle_beside_safetensors_is_left_alone(tmp_path):
    assert names(write_directory(tmp_path / "m", {"pytorch_model.bin": b"", "model.safetensors": GOOD})) == {"x", "y"}


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"])
def test_adapter_is_refused_by_name(tmp_path, name):
    text = refused(write_directory(tmp_path / "m", {name: b"{}", "model.safetensors": GOOD}))
    assert text == f"m: '{name}': adapters are not supported; merge the adapter into its model first"


def test_tokenizer_model_without_tokenizer_json_is_refused(tmp_path):
    path = write_directory(tmp_path / "m", {"tokenizer.model": b"", "model.safetensors": GOOD})
    assert refused(path).startswith("m: tokenizer.model without tokenizer.json: only tokenizer.json is read")
    (tmp_path / "m" / "tokenizer.json").write_bytes(b"{}")
    assert names(path) == {"x", "y"}


def test_split_gguf_is_refused_by_name(tmp_path):
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(GGUF)
    assert refused(path) == f"{path.name}: is one of 2 parts; split GGUF is not supported: merge the parts first"
    assert names(path.rename(tmp_path / "m-00001-of-00001.gguf")) == {"x"}


def test_single_safetensors_file_may_have_any_name(tmp_path):
    assert names(write_directory(tmp_path / "m", {"weights.safetensors": GOOD})) == {"x", "y"}


def test_several_files_without_an_index_are_one_model(tmp_path):
    assert names(write_directory(tmp_path / "m", {"a.safetensors": GOOD, "b.safetensors": vectors(z=[1.0])})) == set(
        "xyz"
    )


def test_index_decides_over_model_safetensors(tmp_path):
    files = {INDEX: index_file(z="a.safetensors"), "a.safetensors": vectors(z=[1.0]), "model.safetensors": GOOD}
    assert names(write_directory(tmp_path / "m", files)) == {"z"}


def test_headers_are_read_without_torch_or_numpy():
    code = (
        "import sys, pyvllm.model_loader.checkpoint; print({'torch', 'numpy', 'logging', 'pydantic'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_opening_a_directory_opens_no_weight_file(tmp_path):
    path = write_directory(tmp_path / "m", {"model.safetensors": b"broken", INDEX: b"broken"})
    before = open_descriptors()
    source = open_model(path)
    assert (source.kind, source.architecture, source.name) == ("safetensors", "LlamaForCausalLM", "m")
    assert open_descriptors() == before


def _fifo(path):
    os.mkfifo(path)


def _socket(path):
    socket.socket(socket.AF_UNIX).bind(str(path))


KINDS = {"a directory": os.mkdir, "a FIFO": _fifo, "a character device": lambda path: path.symlink_to("/dev/zero")}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", INDEX])
@pytest.mark.parametrize("kind", ["a directory", "a FIFO"])
def test_only_regular_files_are_read(tmp_path, kind, name):
    path = write_directory(tmp_path / "m", {"model.safetensors": GOOD})
    (tmp_path / "m" / name).unlink(missing_ok=True)
    KINDS[kind](tmp_path / "m" / name)
    assert refused(path) == f"{name}: must be a regular file, found {kind}"


@pytest.mark.parametrize("kind", ["a FIFO", "a character device"])
def test_gguf_path_must_be_a_regular_file(tmp_path, kind):
    KINDS[kind](tmp_path / "m.gguf")
    assert refused(tmp_path / "m.gguf").endswith(f"must be a regular file, found {kind}")


def test_socket_is_refused(tmp_path, monkeypatch):
    path = write_directory(tmp_path / "m", {})
    monkeypatch.chdir(tmp_path / "m")  # the name of a socket is short
    _socket("model.safetensors")
    assert refused(path).startswith("model.safetensors: cannot be opened: ")


OUT = "is a symbolic link that leads out of the model directory"
TARGETS = {
    "/dev/zero": OUT,
    "/etc/passwd": OUT,
    "../outside.safetensors": OUT,
    "../m2/model.safetensors": OUT,
    "model.safetensors": "cannot be opened: Too many levels of symbolic links",
    "nowhere.safetensors": "cannot be opened: No such file or directory",
    ".": OUT,
}


@pytest.mark.parametrize(("target", "expected"), TARGETS.items(), ids=TARGETS)
def test_link_that_leads_out_is_refused(tmp_path, target, expected):
    path = write_directory(tmp_path / "m", {})
    write_directory(tmp_path / "m2", {"model.safetensors": GOOD})
    (tmp_path / "outside.safetensors").write_bytes(GOOD)
    (tmp_path / "m" / "model.safetensors").symlink_to(target)
    assert refused(path) == f"model.safetensors: {expected}"


def test_link_inside_the_directory_is_followed(tmp_path):
    path = write_directory(tmp_path / "m", {"weights.bin": GOOD})
    (tmp_path / "m" / "model.safetensors").symlink_to("weights.bin")
    assert names(path) == {"x", "y"}


def test_gguf_behind_a_link_keeps_the_name_it_was_given(tmp_path):
    (tmp_path / "0a1b").write_bytes(GGUF)
    (tmp_path / "m.gguf").symlink_to("0a1b")
    assert open_model(str(tmp_path / "m.gguf")).name == "m.gguf"


def snapshot(tmp_path, parent="snapshots"):
    """The cache of huggingface_hub: the files of a revision are links to `blobs`."""
    model = tmp_path / "models--a--b"
    (model / "blobs").mkdir(parents=True)
    (model / parent).mkdir()
    path = write_directory(model / parent / "rev", {})
    (model / "blobs" / "0a1b").write_bytes(GOOD)
    (model / parent / "rev" / "model.safetensors").symlink_to("../../blobs/0a1b")
    config = model / parent / "rev" / "config.json"
    config.rename(model / "blobs" / "c0")
    config.symlink_to("../../blobs/c0")
    return path


def test_links_of_the_hub_cache_work(tmp_path):
    path = snapshot(tmp_path)
    assert names(path) == {"x", "y"}
    (tmp_path / "link").symlink_to(path)
    assert names(tmp_path / "link") == {"x", "y"}


def test_links_to_blobs_work_for_snapshots_alone(tmp_path):
    assert refused(snapshot(tmp_path, "other")) == f"config.json: {OUT}"


def test_blobs_that_are_a_link_themselves_lead_out(tmp_path):
    path = snapshot(tmp_path)
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    assert refused(path) == f"config.json: {OUT}"


def test_directory_with_too_many_entries_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("pyvllm.model_loader.paths.MAX_DIRECTORY_ENTRIES", 2)
    path = write_directory(tmp_path / "m", {"a.safetensors": GOOD, "b.safetensors": GOOD})
    assert refused(path) == "the model directory has more than 2 entries"


def test_unreadable_file_is_refused_with_the_reason(tmp_path):
    path = write_directory(tmp_path / "m", {"model.safetensors": GOOD})
    (tmp_path / "m" / "model.safetensors").chmod(0)
    if os.access(tmp_path / "m" / "model.safetensors", os.R_OK):
        pytest.skip("root may read everything")
    assert refused(path) == "model.safetensors: cannot be opened: Permission denied"


def test_gguf_that_is_replaced_between_plan_and_load_is_refused(tmp_path):
    (tmp_path / "m.gguf").write_bytes(GGUF)
    source = open_model(str(tmp_path / "m.gguf"))
    (tmp_path / "new").write_bytes(GGUF)
    (tmp_path / "new").rename(tmp_path / "m.gguf")
    with pytest.raises(ModelLoadError, match=r"m\.gguf: was changed while it was being loaded"):
        source.headers()


def test_shard_that_is_replaced_after_its_header_was_read_is_read_as_it_was(tmp_path):
    path = write_directory(tmp_path / "m", {"model.safetensors": vectors(x=[1.0])})
    with open_model(path).headers() as checkpoint:
        (tmp_path / "new").write_bytes(vectors(x=[9.0]))
        (tmp_path / "new").rename(tmp_path / "m" / "model.safetensors")
        read = bytearray(4)
        checkpoint.read_into(checkpoint.tensors["x"], 0, memoryview(read))
    assert bytes(read) == vectors(x=[1.0])[-4:]


def test_file_that_shrinks_under_the_reader_is_truncated(tmp_path):
    path = write_directory(tmp_path / "m", {"model.safetensors": GOOD})
    with open_model(path).headers() as checkpoint:
        os.truncate(tmp_path / "m" / "model.safetensors", len(GOOD) - 6)
        with pytest.raises(ModelLoadError, match=r"model\.safetensors: truncated: 8 bytes asked for at"):
            checkpoint.read_into(checkpoint.tensors["x"], 0, memoryview(bytearray(8)))


def test_close_gives_every_file_back_once(tmp_path):
    path = write_directory(tmp_path / "m", {"a.safetensors": GOOD, "b.safetensors": vectors(z=[1.0])})
    before = open_descriptors()
    checkpoint = open_model(path).headers()
    assert open_descriptors() == before + 2
    checkpoint.close()
    checkpoint.close()
    assert open_descriptors() == before
