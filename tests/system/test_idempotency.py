"""Idempotency-Key: replays, conflicts, requests at once, over a restart."""

import threading
import uuid

from harness import poll


def fresh():
    return {"Idempotency-Key": f"test-{uuid.uuid4()}"}


def test_the_same_request_again_gets_the_stored_answer(api):
    head = fresh()
    first = api.ask("POST", "/v1/sandboxes", {"template": "base"}, headers=head)
    again = api.ask("POST", "/v1/sandboxes", {"template": "base"}, headers=head)
    assert first.status == 201 and "Idempotency-Replayed" not in first.headers
    assert again.status == 201 and again.headers["Idempotency-Replayed"] == "true"
    assert first.json == again.json
    # wait is no part of the request's identity.
    waited = api.ask("POST", "/v1/sandboxes", {"template": "base"}, headers=head, query={"wait": 5})
    assert waited.json == first.json
    api.delete(first.json["sandbox"]["id"])


def test_another_body_or_path_is_a_conflict(api, shared):
    head = fresh()
    api.expect(200, "POST", f"/v1/sandboxes/{shared}/run", {"argv": ["true"]}, headers=head)
    for method, path, body in [
        ("POST", f"/v1/sandboxes/{shared}/run", {"argv": ["false"]}),
        ("POST", f"/v1/sandboxes/{shared}/commands", {"argv": ["true"]}),
        ("PATCH", f"/v1/sandboxes/{shared}", {}),
        ("DELETE", f"/v1/sandboxes/{shared}", None),
    ]:
        answer = api.ask(method, path, body, headers=head)
        assert (answer.status, answer.code) == (409, "idempotency_conflict"), (path, answer)


def test_a_command_runs_once(api, shared):
    head = fresh()
    body = {"shell": "echo run >> /tmp/once; wc -l < /tmp/once"}
    answers = [api.post(f"/v1/sandboxes/{shared}/run", body, headers=head) for _ in range(3)]
    assert [a["stdout"] for a in answers] == ["1\n"] * 3


def test_one_that_still_runs_is_waited_for(api, shared):
    head = fresh()
    body = {"shell": "sleep 0.5; echo x >> /tmp/at-once; wc -l < /tmp/at-once"}
    got = []

    def one():
        got.append(api.ask("POST", f"/v1/sandboxes/{shared}/run", body, headers=head))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [a.status for a in got] == [200] * 8
    assert {a.json["stdout"] for a in got} == {"1\n"}
    assert len({a.json["process_id"] for a in got}) == 1
    assert sum("Idempotency-Replayed" in a.headers for a in got) == 7


def test_creates_at_once_make_one_sandbox(api):
    head = fresh()
    got = []

    def one():
        got.append(api.ask("POST", "/v1/sandboxes", {"template": "base", "metadata": {"of": head["Idempotency-Key"]}},
                           headers=head))

    threads = [threading.Thread(target=one) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({a.json["sandbox"]["id"] for a in got}) == 1
    listed = api.get("/v1/sandboxes", query={"metadata.of": head["Idempotency-Key"]})["items"]
    assert len(listed) == 1
    api.delete(listed[0]["id"])


def test_errors_that_can_not_go_away_are_stored(api):
    head = fresh()
    for replayed in (False, True):
        answer = api.ask("POST", "/v1/sandboxes", {"template": "nosuch"}, headers=head)
        assert answer.status == 404 and ("Idempotency-Replayed" in answer.headers) == replayed


def test_keys_belong_to_their_api_key(api):
    other = api.post("/v1/keys", {"name": "other", "role": "member"}, status=201)
    head = fresh()
    mine = api.ask("POST", "/v1/sandboxes", {"template": "base"}, headers=head)
    theirs = api.as_key(other["key"]).ask("POST", "/v1/sandboxes", {"template": "base"}, headers=head)
    assert mine.json["sandbox"]["id"] != theirs.json["sandbox"]["id"]
    for answer in (mine, theirs):
        api.delete(answer.json["sandbox"]["id"])
    api.expect(200, "DELETE", f"/v1/keys/{other['id']}")


def test_a_stored_answer_survives_a_restart(api, installation):
    head = fresh()
    first = api.ask("POST", "/v1/sandboxes", {"template": "base"}, headers=head)
    installation.kill_daemon("space-api")
    api.close()
    installation.wait_ready()
    again = api.ask("POST", "/v1/sandboxes", {"template": "base"}, headers=head)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.json["sandbox"]["id"] == first.json["sandbox"]["id"]
    api.delete(first.json["sandbox"]["id"])


def test_deletes_and_patches_replay(api):
    sandbox = api.create()["id"]
    head = fresh()
    first = api.ask("DELETE", f"/v1/sandboxes/{sandbox}", headers=head)
    poll.until(lambda: api.ask("GET", f"/v1/sandboxes/{sandbox}").status == 404, 10, "deleted")
    again = api.ask("DELETE", f"/v1/sandboxes/{sandbox}", headers=head)
    assert (first.status, again.status) == (200, 200) and again.headers["Idempotency-Replayed"] == "true"
