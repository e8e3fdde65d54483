"""Sandboxes and operations: create, read, list, change, delete, expire."""

import datetime
import time

import pytest

from harness import poll, rules


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def parse(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def test_create_answers_when_it_runs(api, sandboxes):
    sandbox = sandboxes(name="first", metadata={"team": "a"}, env={"LANG": "C.UTF-8"})
    assert sandbox["state"] == "running" and sandbox["state_reason"] is None
    assert (sandbox["vcpus"], sandbox["memory_mib"], sandbox["disk_mib"]) == (1, 512, 4096)
    assert sandbox["env_names"] == ["LANG"] and sandbox["metadata"] == {"team": "a"}
    assert sandbox["expires_at"] is None and sandbox["durability"] is None
    assert sandbox["lifecycle"] == {
        "idle_timeout_seconds": 21600, "idle_action": "suspend", "timeout_seconds": None, "timeout_action": "delete",
        "auto_wake": True, "keep_suspended_seconds": None}
    identity = sandbox["identity"]
    assert all(identity[k] for k in ("entropy", "clock", "hostname", "machine_id", "tokens"))
    assert api.sandbox(sandbox["id"])["id"] == sandbox["id"]


def test_create_with_sizes_is_what_the_guest_sees(api, sandboxes):
    sandbox = sandboxes(vcpus=2, memory_mib=256, disk_mib=6144)
    seen = api.check_output(sandbox["id"], "nproc; awk '/MemTotal/{print $2}' /proc/meminfo; "
                                           "df --output=size -BM / | tail -n 1").split()
    assert seen[0] == "2"
    assert 180_000 < int(seen[1]) < 262_144
    assert 5_400 < int(seen[2].rstrip("M")) <= 6144


def test_memory_that_ends_where_the_kernel_wants_its_initramfs(api, sandboxes):
    """RAM up to 2 GiB exactly, the kernel's own limit for the initramfs: both were put into one place once."""
    sandbox = sandboxes(memory_mib=2048)
    seen = int(api.check_output(sandbox["id"], "awk '/MemTotal/ {print $2}' /proc/meminfo"))
    assert 1850 * 1024 < seen <= 2048 * 1024


def test_create_without_wait_is_202_and_ends(api, sandboxes):
    answer = api.ask("POST", "/v1/sandboxes", {"template": "base"}, query={"wait": 0})
    assert answer.status in (201, 202)
    operation, sandbox = answer.json["operation"], answer.json["sandbox"]
    assert operation["kind"] == "create" and operation["sandbox_id"] == sandbox["id"]
    done = api.get(f"/v1/operations/{operation['id']}", query={"wait": 60})
    assert done["state"] == "succeeded" and done["finished_at"]
    assert api.sandbox(sandbox["id"])["state"] == "running"
    api.delete(sandbox["id"])


@pytest.mark.parametrize("template, field", [("nosuch", None), ("base@tmxxxxxxxxxxxxxxxxxx", None)])
def test_an_unknown_template_is_404(api, template, field):
    answer = api.ask("POST", "/v1/sandboxes", {"template": template})
    assert (answer.status, answer.code, answer.details["resource"]) == (404, "not_found", "template")


def test_a_template_version_can_be_named(api, sandboxes):
    version = api.get("/v1/templates/base")["version"]
    assert sandboxes(template=f"base@{version}")["template_version"] == version


def test_templates_are_listed(api):
    items = api.get("/v1/templates")["items"]
    base = next(item for item in items if item["name"] == "base")
    assert base == api.get("/v1/templates/base")
    assert (base["user"], base["vcpus"], base["memory_mib"], base["disk_mib"]) == ("user", 1, 512, 4096)
    answer = api.ask("GET", "/v1/templates/nosuch")
    assert (answer.status, answer.details["resource"]) == (404, "template")


def test_a_name_is_unique_among_the_living(api, sandboxes):
    first = sandboxes(name="only-one")
    answer = api.ask("POST", "/v1/sandboxes", {"template": "base", "name": "only-one"})
    assert (answer.status, answer.code) == (409, "conflict")
    assert answer.details["sandbox_id"] == first["id"]
    other = sandboxes()
    answer = api.ask("PATCH", f"/v1/sandboxes/{other['id']}", {"name": "only-one"})
    assert (answer.status, answer.code) == (409, "conflict")
    api.delete(first["id"])
    assert api.expect(200, "PATCH", f"/v1/sandboxes/{other['id']}", {"name": "only-one"}).json["name"] == "only-one"


def test_delete_leaves_nothing(api, installation):
    sandbox = api.create()
    answer = api.delete(sandbox["id"])
    assert answer["operation"]["kind"] == "delete" and answer["operation"]["state"] == "succeeded"
    gone = api.ask("GET", f"/v1/sandboxes/{sandbox['id']}")
    assert (gone.status, gone.details["resource"]) == (404, "sandbox")
    assert api.ask("DELETE", f"/v1/sandboxes/{sandbox['id']}").status == 404
    assert not (installation.data / "volume/sandboxes" / sandbox["id"]).exists()
    assert sandbox["id"] not in [item["id"] for item in api.get("/v1/sandboxes")["items"]]


def test_delete_wins_over_a_create_that_still_runs(api):
    answer = api.ask("POST", "/v1/sandboxes", {"template": "base", "memory_mib": 384}, query={"wait": 0})
    sandbox_id, operation_id = answer.json["sandbox"]["id"], answer.json["operation"]["id"]
    api.delete(sandbox_id)
    operation = api.get(f"/v1/operations/{operation_id}", query={"wait": 30})
    assert operation["state"] in ("failed", "succeeded")
    assert api.ask("GET", f"/v1/sandboxes/{sandbox_id}").status == 404


def test_delete_wins_over_a_running_command(api):
    sandbox = api.create()
    process, session = api.start(sandbox["id"], "echo started; exec sleep 1000")
    with api.events(session["id"]) as events:
        assert next(e for e in events if e["event"] == "output")
        api.expect((200, 202), "DELETE", f"/v1/sandboxes/{sandbox['id']}")
        last = [event["event"] for event in events]
    assert last[-1] == "process_lost", last


def test_patch_merges(api, sandboxes):
    sandbox = sandboxes(metadata={"a": "1", "b": "2"}, env={"A": "1", "B": "2"})
    path = f"/v1/sandboxes/{sandbox['id']}"
    after = api.expect(200, "PATCH", path, {"metadata": {"b": None, "c": "3"}, "env": {"A": None, "C": "3"}}).json
    assert after["metadata"] == {"a": "1", "c": "3"} and sorted(after["env_names"]) == ["B", "C"]
    assert api.check_output(sandbox["id"], 'echo "$A,$B,$C"') == ",2,3\n"
    assert api.expect(200, "PATCH", path, {"name": "patched"}).json["name"] == "patched"
    assert api.expect(200, "PATCH", path, {"name": None}).json["name"] is None
    assert api.expect(200, "PATCH", path, {}).json["metadata"] == {"a": "1", "c": "3"}


def test_env_values_are_never_returned(api, installation, sandboxes):
    secret = "hush-4711-value"
    sandbox = sandboxes(env={"SECRET": secret})
    assert api.check_output(sandbox["id"], "echo $SECRET") == secret + "\n"
    kept = installation.data / "volume/sandboxes" / sandbox["id"] / "env.json"
    assert kept.stat().st_mode & 0o777 == 0o600 and kept.stat().st_uid == 0
    for path in ("/v1/sandboxes", f"/v1/sandboxes/{sandbox['id']}", "/v1/operations"):
        assert secret not in api.expect(200, "GET", path).body.decode()
    for path in installation.logs.glob("*"):
        assert secret not in path.read_text(encoding="utf-8", errors="replace")


class TestList:
    @pytest.fixture(scope="class")
    def five(self, installation):
        api = installation.api
        made = [api.create(name=f"list-{i}", metadata={"set": "five", "n": str(i % 2)}) for i in range(5)]
        yield made
        for sandbox in made:
            api.delete(sandbox["id"])

    @staticmethod
    def ids(api, **query):
        return [item["id"] for item in api.get("/v1/sandboxes", query=query)["items"]]

    def test_newest_first_and_filtered_by_metadata(self, api, five):
        got = self.ids(api, **{"metadata.set": "five"})
        assert got == [s["id"] for s in reversed(five)]
        got = self.ids(api, **{"metadata.set": "five", "metadata.n": "1"})
        assert got == [five[3]["id"], five[1]["id"]]
        assert self.ids(api, **{"metadata.set": "nothing"}) == []

    def test_filtered_by_name_template_and_state(self, api, five):
        assert self.ids(api, name="list-2") == [five[2]["id"]]
        assert self.ids(api, template="nosuch") == []
        assert set(s["id"] for s in five) <= set(self.ids(api, template="base"))
        assert set(s["id"] for s in five) <= set(self.ids(api, state=["running", "error"]))
        assert not set(s["id"] for s in five) & set(self.ids(api, state="error"))

    def test_filtered_by_time(self, api, five):
        middle = five[2]["created_at"]
        query = {"metadata.set": "five"}
        after = self.ids(api, created_after=middle, **query)
        before = self.ids(api, created_before=middle, **query)
        assert five[4]["id"] in after and five[0]["id"] in before
        assert five[0]["id"] not in after and five[4]["id"] not in before

    def test_pages_are_stable_under_inserts(self, api, five, sandboxes):
        query = {"metadata.set": "five", "limit": 2}
        page = api.get("/v1/sandboxes", query=query)
        got = [item["id"] for item in page["items"]]
        assert len(got) == 2 and page["next_cursor"]
        sandboxes(metadata={"set": "five"})
        while page["next_cursor"]:
            page = api.get("/v1/sandboxes", query={**query, "cursor": page["next_cursor"]})
            got += [item["id"] for item in page["items"]]
        assert got == [s["id"] for s in reversed(five)]

    def test_fields_limit_the_keys(self, api, five):
        answer = api.ask("GET", "/v1/sandboxes?fields=id,state&metadata.set=five", check=False)
        assert answer.status == 200
        assert all(set(item) == {"id", "state"} for item in answer.json["items"])

    def test_a_cursor_is_of_its_list(self, api, five):
        cursor = api.get("/v1/sandboxes", query={"limit": 1})["next_cursor"]
        answer = api.ask("GET", "/v1/operations", query={"cursor": cursor})
        assert (answer.status, answer.details["field"]) == (400, "cursor")


def test_operations_are_listed_with_filters(api, sandboxes):
    sandbox = sandboxes()
    items = api.get("/v1/operations", query={"sandbox_id": sandbox["id"]})["items"]
    assert [item["kind"] for item in items] == ["create"]
    assert items[0] == api.get(f"/v1/operations/{items[0]['id']}")
    assert api.get("/v1/operations", query={"sandbox_id": sandbox["id"], "kind": "delete"})["items"] == []
    assert api.get("/v1/operations", query={"sandbox_id": sandbox["id"], "state": "failed"})["items"] == []


def test_the_console_is_readable(api, sandboxes):
    sandbox = sandboxes()
    api.check_output(sandbox["id"], "sudo sh -c 'echo hello from the console > /dev/console'")
    path = f"/v1/sandboxes/{sandbox['id']}/console"
    poll.until(lambda: b"hello from the console" in api.ask("GET", path).body, 10, "console text")


def test_the_console_keeps_the_last_64_kib(api, sandboxes):
    sandbox = sandboxes()["id"]
    path = f"/v1/sandboxes/{sandbox}/console"
    api.check_output(sandbox, "sudo sh -c 'echo the oldest > /dev/console'")
    poll.until(lambda: b"the oldest" in api.ask("GET", path).body, 10, "console text")
    api.check_output(sandbox, "sudo sh -c 'seq -f %08.0f 1 9000 > /dev/console'", timeout_seconds=60)
    poll.until(lambda: api.ask("GET", path).body.endswith(b"00009000\r\n"), 30, "all of it")
    text = api.ask("GET", path).body
    assert len(text) == 65536
    # The guest's kernel may say something in between.
    lines = [line for line in text.split(b"\r\n")[1:] if len(line) == 8 and line.isdigit()]
    assert [int(line) for line in lines] == list(range(9001 - len(lines), 9001)) and len(lines) > 6000


class TestExpiry:
    def test_never_early_and_at_most_a_second_late(self, api):
        asked = time.monotonic()
        sandbox = api.create(lifecycle={"timeout_seconds": 3})
        expires = parse(sandbox["expires_at"])
        gone = poll.until(
            lambda: (api.ask("GET", f"/v1/sandboxes/{sandbox['id']}").status == 404) and now(), 8, "expired")
        assert time.monotonic() - asked >= 3
        assert expires <= gone <= expires + datetime.timedelta(seconds=1)

    def test_a_patch_starts_it_anew_and_null_ends_it(self, api, sandboxes):
        sandbox = sandboxes(lifecycle={"timeout_seconds": 2})
        path = f"/v1/sandboxes/{sandbox['id']}"
        first = parse(sandbox["expires_at"])
        after = api.expect(200, "PATCH", path, {"lifecycle": {"timeout_seconds": 600}}).json
        assert 590 < (parse(after["expires_at"]) - now()).total_seconds() <= 600
        after = api.expect(200, "PATCH", path, {"lifecycle": {"timeout_seconds": None}}).json
        assert after["expires_at"] is None
        poll.until(lambda: now() > first + datetime.timedelta(seconds=1), 5, "the first deadline has passed")
        assert api.sandbox(sandbox["id"])["state"] == "running"

    def test_it_survives_a_restart_of_the_api(self, api, installation):
        sandbox = api.create(lifecycle={"timeout_seconds": 4})
        installation.kill_daemon("space-api")
        api.close()
        installation.wait_ready()
        ready = time.time()
        expires = rules.time_of(sandbox["expires_at"])
        poll.until(lambda: api.ask("GET", f"/v1/sandboxes/{sandbox['id']}").status == 404, 15, "expired")
        assert expires <= rules.begun_at(api, sandbox["id"], "delete") <= max(expires, ready) + 1
