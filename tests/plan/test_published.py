"""Plan, fit and page of three published models, from headers without data, against totals worked out by hand.

All three are bfloat16: two bytes an element. The sums stand in the comments.
"""

import pytest

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.preview import AssumedRoom, plan_document
from pyvllm.entrypoints.plan_page import plan_page
from pyvllm.errors import DoesNotFit
from tests.plan.headers import LLAMA_3_70B, QWEN3_30B_A3B, QWEN3_235B_A22B, write_headers

AUTO = {"vllm_cpp": {"device_fit": {"auto": True}}}
GIB = 2**30
HOST = 1024 * GIB


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    return {
        "30b": write_headers(QWEN3_30B_A3B, root / "30b", 16),
        "235b": write_headers(QWEN3_235B_A22B, root / "235b", 118),
        "70b": write_headers(LLAMA_3_70B, root / "70b", 30),
    }


def plan(model, device_bytes, document=None, max_model_len=4096):
    offload = OffloadConfig.from_dict(document or {})
    config = EngineConfig(model=str(model), max_model_len=max_model_len, offload=offload)
    return plan_document(config, AssumedRoom(device_bytes, HOST))


def kinds(document):
    return {kind["kind"]: sum(kind[f"{place}_bytes"] for place in ("device", "host", "streamed"))
            for kind in document["by_kind"]}  # fmt: skip


def test_files_of_the_published_size_take_no_room_on_the_disk(models):
    shards = list(models["235b"].glob("*.safetensors"))
    assert sum(file.stat().st_size for file in shards) > 470 * 10**9
    assert sum(file.stat().st_blocks for file in shards) * 512 < 64 * 2**20


# Qwen3-30B-A3B: hidden 2048, 48 layers, 32 heads and 4 key-value heads of 128, 128 experts of 768, vocabulary 151,936.
#   attention, a layer: (2048 * 4096 + 2 * 2048 * 512 + 4096 * 2048) * 2 = 37,748,736;        48 layers 1,811,939,328
#   experts, a layer: 128 * 3 * 2048 * 768 * 2 = 1,207,959,552;                               48 layers 57,982,058,496
#   router, a layer: 128 * 2048 * 2 = 524,288;                                                48 layers 25,165,824
#   norms, a layer: 2 of 2048 and 2 of 128, and the last of 2048;                             all 421,888
#   embedding and head: 151,936 * 2048 * 2 = 622,329,856 each;                                        1,244,659,712
#   all 61,064,245,248 bytes, 30.53 billion parameters.
def test_qwen3_30b_a3b_has_its_published_bytes_by_kind(models):
    document = plan(models["30b"], 80 * GIB)
    assert document["weights"] == {
        "count": 48 * 9 + 3, "considered": None, "bytes": 61_064_245_248, "file_bytes": 61_064_245_248,
    }  # fmt: skip
    assert kinds(document) == {
        "attention": 1_811_939_328,
        "experts": 57_982_058_496,
        "embedding": 622_329_856,
        "head": 622_329_856,
        "norm": 421_888,
        "other": 25_165_824,
    }
    assert sum(kinds(document).values()) == 61_064_245_248


# Key-value cache: 2 * 48 layers * 4 heads * 128 * 2 bytes = 98,304 a token, one sequence of 4096: 402,653,184.
# Workspace as estimated: 311,713,792. Of 24 GiB, 92 % are 23,708,219,473; left for weights: 22,993,852,497.
# Reading experts in place needs one expert's w13 on the device: 2 * 768 * 2048 * 2 = 6,291,456.
# To leave: 61,064,245,248 - 22,993,852,497 + 6,291,456 = 38,076,684,207 = 31.52 layers of experts:
# 31 layers and the w13 of layer 31 (2/3 of 1,207,959,552 = 805,306,368) are 38,252,052,480.
# One weight less is 37,446,746,112 = 34.875 GiB, all of it 35.625 GiB: the shortest budget between is 35.
def test_the_fit_of_qwen3_30b_a3b_into_24_gib_is_the_one_worked_out_by_hand(models):
    document = plan(models["30b"], 24 * GIB, AUTO)
    assert document["fit"]["offload_config"] == '{"uva": {"cpu_offload_gb": 35, "cpu_offload_params": ["experts"]}}'
    planned = document["planned"]
    assert planned["kv_cache_bytes"] == 402_653_184 and planned["workspace_bytes"] == 311_713_792
    assert planned["host_bytes"] == 38_252_052_480
    assert planned["device_bytes"] == 22_812_192_768
    assert planned["buffer_bytes"] == 6_291_456
    # Of 128 experts a token uses 8: a sixteenth.
    assert document["bus_bytes_per_token"] == {"worst": 38_252_052_480, "expected": 2_390_753_280}
    assert document["bus"]["experts_used"] == 8 and document["bus"]["experts_of"] == 128
    assert document["by_layer"][31]["host_bytes"] == 805_306_368
    assert document["by_layer"][32]["host_bytes"] == 0


# Qwen3-235B-A22B: hidden 4096, 94 layers, 64 heads and 4 key-value heads of 128, 128 experts of 1536.
#   attention 94 * 142,606,336 = 13,404,995,584; experts 94 * 4,831,838,208 = 454,192,791,552;
#   routers 94 * 1,048,576 = 98,566,144; norms 94 * 16,896 + 8,192 = 1,596,416; embedding and head 1,244,659,712 each.
def test_qwen3_235b_a22b_has_its_published_bytes_by_kind(models):
    document = plan(models["235b"], 640 * GIB)
    assert kinds(document) == {
        "attention": 13_404_995_584,
        "experts": 454_192_791_552,
        "embedding": 1_244_659_712,
        "head": 1_244_659_712,
        "norm": 1_596_416,
        "other": 98_566_144,
    }
    assert document["weights"]["bytes"] == 470_187_269_120
    assert not document["enabled"]


# Without a single expert 470,187,269,120 - 454,192,791,552 = 15,994,477,568 bytes remain. One expert's w13 passes
# through 2 * 1536 * 4096 * 2 = 25,165,824. The cache of 4096 tokens has 2 * 94 * 4 * 128 * 2 * 4096 = 788,529,152.
# The workspace is an estimate and is taken as planned. All of that is to be 92 % of the device.
def test_qwen3_235b_a22b_fits_exactly_down_to_the_size_worked_out_by_hand(models):
    rest = 15_994_477_568 + 25_165_824 + 788_529_152
    workspace = plan(models["235b"], 640 * GIB)["planned"]["workspace_bytes"]
    smallest = int((rest + workspace) / 0.92) + 2
    document = plan(models["235b"], smallest, AUTO)
    assert document["planned"]["host_bytes"] == 454_192_791_552
    with pytest.raises(DoesNotFit, match=r"all 454192791552 bytes of them on the host 15994477568 bytes of weights"):
        plan(models["235b"], smallest - 1000, AUTO)


# Llama-3-70B: hidden 8192, 80 layers, 64 heads and 8 key-value heads of 128, intermediate 28,672, vocabulary 128,256.
#   a layer: attention 301,989,888 + feed-forward 3 * 8192 * 28,672 * 2 = 1,409,286,144 + norms 32,768 = 1,711,308,800
#   80 layers 136,904,704,000; embedding and head 2,101,346,304 each; final norm 16,384: 141,107,412,992.
def test_llama_3_70b_has_its_published_bytes_by_kind(models):
    document = plan(models["70b"], 160 * GIB)
    assert kinds(document) == {
        "attention": 80 * 301_989_888,
        "dense": 80 * 1_409_286_144,
        "embedding": 2_101_346_304,
        "head": 2_101_346_304,
        "norm": 80 * 32_768 + 16_384,
    }
    assert document["weights"]["bytes"] == 141_107_412_992
    assert document["by_layer"][40]["device_bytes"] == 1_711_308_800


# Into 80 GiB: 92 % are 79,027,398,246, without cache (327,680 * 4096 = 1,342,177,280) and workspace the rest is for
# weights. uva passes gate_up (939,524,096) and a norm (16,384) through buffers; prefetch with one step keeps one layer
# twice (1,711,308,800), and streams whole layers. The oracle tries every budget and every number of streamed layers.
def test_the_fit_of_llama_3_70b_into_80_gib_moves_the_fewest_bytes(models):
    document = plan(models["70b"], 80 * GIB, AUTO)
    planned = document["planned"]
    room = int(80 * GIB * 0.92) - planned["kv_cache_bytes"] - planned["workspace_bytes"]
    assert planned["kv_cache_bytes"] == 1_342_177_280
    layer = [167_772_160, 134_217_728, 939_524_096, 469_762_048, 16_384, 16_384]
    moved, uva = 0, None
    for nbytes in layer * 80:
        moved += nbytes
        if uva is None and 141_107_412_992 - moved + 939_524_096 + 16_384 <= room:
            uva = moved
    streamed = next(n for n in range(2, 81) if 141_107_412_992 - (n - 1) * 1_711_308_800 <= room) * 1_711_308_800
    assert document["bus_bytes_per_token"]["expected"] == min(uva, streamed)
    assert document["capacity"]["spare_device_bytes"] >= 0


def test_an_excess_below_the_embedding_is_met_by_the_embedding_of_which_a_token_reads_one_row(models):
    whole = plan(models["70b"], 160 * GIB)["capacity"]["needed_device_bytes"]
    whole -= plan(models["70b"], 160 * GIB)["planned"]["kv_cache_bytes"] - 1_342_177_280
    document = plan(models["70b"], int(whole / 0.92) - 2 * 10**9, AUTO)
    assert document["config"]["uva"]["cpu_offload_params"] == ["embed_tokens"]
    assert document["bus_bytes_per_token"]["expected"] == 8192 * 2


@pytest.mark.parametrize(("name", "device"), [("30b", 24 * GIB), ("235b", 96 * GIB), ("70b", 80 * GIB)])
def test_the_printed_configuration_gives_the_same_plan(models, name, device):
    chosen = plan(models[name], device, AUTO)
    again = plan_document(
        EngineConfig(
            model=str(models[name]),
            max_model_len=4096,
            offload=OffloadConfig.from_json(chosen["fit"]["offload_config"]),
        ),
        AssumedRoom(device, HOST),
    )
    assert again == {**chosen, "fit": {**chosen["fit"], "auto": False, "reason": None}}


def test_the_page_of_a_published_model_bears_the_hand_checked_totals(models):
    page = plan_page(plan(models["30b"], 24 * GIB, AUTO), "Qwen3-30B-A3B")
    for figure in ("61,064,245,248", "38,252,052,480", "22,812,192,768", "2,390,753,280", "top-8 of 128"):
        assert figure in page
    assert page.count('class="layer"') == 49
