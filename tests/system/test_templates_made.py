"""Templates made from checkpoints, on real VMs."""

import pytest

from harness import poll

COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
FACTS = "cat /proc/sys/kernel/random/boot_id /etc/machine-id; hostname"


def make(api, name, checkpoint, **more):
    answer = api.expect(201, "POST", "/v1/templates", {"name": name, "checkpoint_id": checkpoint},
                        query={"wait": 120}, **more).json
    assert answer["operation"]["state"] == "succeeded" and answer["operation"]["sandbox_id"] is None
    assert answer["operation"]["result"] == answer["template"]
    return answer["template"]


def checkpoint_of(api, sandbox, **body):
    answer = api.expect(201, "POST", f"/v1/sandboxes/{sandbox}/checkpoints", body, query={"wait": 60}).json
    return answer["operation"]["result"]["id"]


def refused(api, status, method, path, body=None, **more):
    answer = api.expect(status, method, path, body, **more).json["error"]
    return answer["code"], answer["details"]


def left(installation):
    """What is on disk of templates that are not the shipped ones."""
    volume = installation.data / "volume"
    shipped = {path.name for path in (volume / "templates/base").iterdir()}
    return ([p.name for p in (volume / "templates").iterdir() if p.name != "base"]
            + [p.name for p in (volume / "checkpoints").iterdir() if p.name.startswith("tm")]
            + [p.name for p in (volume / "bases").iterdir() if p.name.partition("-")[0] not in shipped])


@pytest.fixture
def templates(api, installation):
    """Removes them all at the end, and looks what is left."""
    yield api
    for item in api.get("/v1/templates")["items"]:
        if item["checkpoint_id"]:
            api.expect(200, "DELETE", f"/v1/templates/{item['name']}")
    poll.until(lambda: left(installation) == [], 60, "nothing is left")


def test_of_disk_and_of_memory(templates, installation, sandboxes):
    api = templates
    source = sandboxes(env={"KEPT": "1"}, memory_mib=256)["id"]
    api.start(source, COUNTER)
    api.check_output(source, "echo here > /home/user/file; sudo -n true 2>/dev/null; echo done")
    api.check_output(source, "mkdir -p /etc/ssh /var/lib/systemd; touch /etc/ssh/ssh_host_x_key /var/lib/systemd/random-seed",
                     user="root")
    disk, memory = checkpoint_of(api, source, memory=False), checkpoint_of(api, source)
    first = make(api, "tools", disk, headers={"Idempotency-Key": "once"})
    assert make(api, "tools", disk, headers={"Idempotency-Key": "once"}) == first, "replayed"
    assert first["memory"] is False and first["memory_mib"] == 256 and first["env_names"] == ["KEPT"]
    second = make(api, "tools", memory)
    assert second["memory"] is True and second["current"] is True and second["checkpoint_id"] == memory
    assert api.get("/v1/templates/tools") == second
    assert api.get("/v1/templates", query={"name": "tools"})["items"] == [second, {**first, "current": False}]
    assert {t["name"] for t in api.get("/v1/templates")["items"]} == {"base", "tools"}
    for checkpoint in (disk, memory):  # they are not needed any more
        api.expect(200, "DELETE", f"/v1/checkpoints/{checkpoint}")
    installation.kill_daemon("space-node")
    installation.wait_ready()

    booted = sandboxes(template=f"tools@{first['version']}", memory_mib=128, env={"OWN": "2"})
    going = sandboxes(template="tools")
    assert (booted["memory_mib"], going["memory_mib"]) == (128, 256)
    assert [s["template_version"] for s in (booted, going)] == [first["version"], second["version"]]
    assert sorted(booted["env_names"]) == ["KEPT", "OWN"] and going["env_names"] == ["KEPT"]
    facts = []
    for sandbox in (source, booted["id"], going["id"]):
        assert api.check_output(sandbox, "cat /home/user/file; echo $KEPT") == "here\n1\n"
        facts.append(api.check_output(sandbox, FACTS).split())
    assert all(len(set(values)) == 3 for values in zip(*facts)), "identities of their own"
    for sandbox in (booted["id"], going["id"]):
        assert api.check_output(sandbox, "ls /etc/ssh/ssh_host_* /var/lib/systemd/random-seed 2>&1 | grep -c 'No such'") == "2\n"
    counts = {s: [p for p in api.get(f"/v1/sandboxes/{s}/processes")["items"] if p["state"] == "running"]
              for s in (booted["id"], going["id"])}
    assert counts[booted["id"]] == [] and len(counts[going["id"]]) == 1
    session = counts[going["id"]][0]["session_id"]
    end = len(api.expect(200, "GET", f"/v1/sessions/{session}/output").body)
    poll.until(lambda: len(api.expect(200, "GET", f"/v1/sessions/{session}/output").body) > end + 20, 60, "it counts on")
    ran = api.post("/v1/run", {"template": "tools", "shell": "cat given; echo $KEPT", "files": [{"path": "given", "text": "new\n"}]})
    assert ran["stdout"] == "new\n1\n" and ran["exit_code"] == 0
    refused(api, 409, "POST", "/v1/run", {"template": "tools", "shell": "sleep infinity",  # never begins
                                          "files": [{"path": "given", "text": "x"}, {"path": "given/more", "text": "x"}]})
    api.post(f"/v1/sandboxes/{going['id']}/suspend", query={"wait": 60})
    api.post(f"/v1/sandboxes/{going['id']}/wake", query={"wait": 60})
    again = checkpoint_of(api, going["id"])
    assert refused(api, 400, "POST", "/v1/sandboxes", {"template": "tools", "memory_mib": 512}) \
        == ("invalid_request", {"field": "memory_mib"})

    api.expect(200, "DELETE", "/v1/templates/tools")
    assert refused(api, 404, "GET", "/v1/templates/tools")[0] == "not_found"
    assert refused(api, 404, "POST", "/v1/sandboxes", {"template": "tools"})[0] == "not_found"
    folder = installation.data / "volume/templates/tools"
    assert (folder / first["version"]).exists() and (folder / second["version"]).exists(), "in use"
    api.delete(booted["id"])
    api.delete(going["id"])
    poll.until(lambda: not (folder / first["version"]).exists(), 30, "unused: gone")
    assert (folder / second["version"]).exists(), "a checkpoint is of it"
    api.expect(200, "DELETE", f"/v1/checkpoints/{again}")
    assert api.check_output(source, "echo alive") == "alive\n"


def test_refusals_and_the_shipped_one(templates, installation, shared):
    api = templates
    disk = checkpoint_of(api, shared, memory=False)
    for body, field in (({"name": "x"}, "checkpoint_id"), ({"checkpoint_id": disk}, "name"),
                        ({"name": "-x", "checkpoint_id": disk}, "name"), ({"name": "x@y", "checkpoint_id": disk}, "name"),
                        ({"name": "x", "checkpoint_id": disk, "more": 1}, "more")):
        assert refused(api, 400, "POST", "/v1/templates", body) == ("invalid_request", {"field": field})
    assert refused(api, 404, "POST", "/v1/templates", {"name": "x", "checkpoint_id": "ck0123456789abcdefgh"}) \
        == ("not_found", {"resource": "checkpoint"})
    code, details = refused(api, 409, "POST", "/v1/templates", {"name": "base", "checkpoint_id": disk}, query={"wait": 60})
    assert code == "failed_precondition" and details["state"] == "shipped"
    for name in ("base", "base@" + api.get("/v1/templates/base")["version"]):
        code, details = refused(api, 409, "DELETE", f"/v1/templates/{name}")
        assert code == "failed_precondition" and details["state"] == "shipped"
    assert refused(api, 404, "DELETE", "/v1/templates/none")[0] == "not_found"
    made = installation.space("templates", "create", "word", "--checkpoint", disk).stdout.strip()
    assert made.startswith("word@tm") and made.partition("@")[2] in installation.space("templates", "ls", "word").stdout
    assert "disk" in installation.space("templates").stdout
    assert installation.space("templates", "rm", "--yes", made).returncode == 0
    api.expect(200, "DELETE", f"/v1/checkpoints/{disk}")
