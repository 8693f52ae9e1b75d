"""`GET /offload`: the engine's own report, names on request, behind the key where there is one."""

import pytest

from tests.server.commands import ServerProcess


def without_rooms(report):
    """The report without what differs from process to process: how much memory is free."""
    return {key: value for key, value in report.items() if key not in ("capacity", "placements")}


def test_report_of_the_server_is_the_librarys(client, llm):
    served, expected = client.get("/offload").json(), llm.offload_report()
    assert without_rooms(served) == without_rooms(expected)
    assert served["asked"]["host_bytes"] == int(0.0001 * 2**30)
    assert served["measured"]["host_bytes"] == served["planned"]["host_bytes"] >= served["asked"]["host_bytes"]


@pytest.mark.parametrize(("query", "has_names"), [("", False), ("?names=false", False), ("?names=0", False),
                                                  ("?names=true", True), ("?names=1", True)])  # fmt: skip
def test_names_come_on_request(client, llm, query, has_names):
    served = client.get(f"/offload{query}").json()
    assert ("placements" in served) is has_names
    if has_names:
        assert served["placements"] == llm.offload_report()["placements"]


def test_report_says_what_was_not_selected_and_why(client):
    served = client.get("/offload?names=1").json()
    [stayed] = served["not_selected"]
    assert stayed["why"] == f"the budget of {int(0.0001 * 2**30)} bytes was reached before it"
    on_device = [weight for weight in served["placements"] if weight["place"] == "device"]
    assert (stayed["count"], stayed["bytes"]) == (len(on_device), served["planned"]["device_bytes"])
    assert {weight["why"] for weight in on_device} == {stayed["why"]}


def test_a_bad_value_of_names_is_refused_by_name(client):
    answer = client.get("/offload?names=yes")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "names" and "'yes'" in answer.json()["error"]["message"]


def test_the_report_needs_the_key_where_there_is_one(model):
    server = ServerProcess("--model", model, "--api-key", "secret")
    with server.client() as bare, server.client("secret") as keyed:
        assert [client.get("/offload").status_code for client in (bare, keyed)] == [401, 200]
    assert server.stop() == 0
