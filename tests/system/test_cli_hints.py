"""What `space` says to do about a failure, against a stand-in of the API: the remedy must fit the cause."""

import os
import pwd
import stat
import subprocess

import pytest

import fake_api
from harness.installation import space_binary


@pytest.fixture
def api():
    made = fake_api.FakeApi()
    yield made
    made.close()


@pytest.fixture
def env(api, tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPACE_", "SUDO_"))}
    return {**clean, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg"), "SPACE_URL": api.url,
            "SPACE_API_KEY": api.key}


@pytest.fixture
def space(env):
    def run(*arguments, **more):
        more.setdefault("env", env)
        return subprocess.run([space_binary(), *arguments], capture_output=True, check=False, timeout=60, text=True, **more)
    return run


def refuse(api, *refusal, **details):
    """Every call of a sandbox gets this answer."""
    api.route = lambda *unused: api.refusal(*refusal, **details)


def test_a_refusal_of_the_guest_is_not_one_of_the_key(space, api, tmp_path):
    box = api.create({"template": "base", "name": "box"})["id"]
    (tmp_path / "file").write_text("x", encoding="ascii")
    refuse(api, 403, "forbidden", "/root: Permission denied", errno="EACCES")
    done = space("cp", str(tmp_path / "file"), f"{box}:/root/")
    assert done.returncode == 1 and "-u root" in done.stderr and "role" not in done.stderr
    done = space("cp", "-u", "root", str(tmp_path / "file"), f"{box}:/root/")
    assert "-u root" not in done.stderr and "role" not in done.stderr


def test_a_refused_role_says_which_key_helps(space, api, env):
    refuse(api, 403, "forbidden", "a key with role member may not do this: it takes role admin")
    done = space("keys")
    assert "it takes role admin" in done.stderr and "keys create --role" in done.stderr and "member or admin" not in done.stderr
    api.key = "token"
    assert "API key instead" in space("keys", env={**env, "SPACE_API_KEY": "token"}).stderr


@pytest.mark.parametrize("code, words", [("capacity_unavailable", ("create", "base")), ("service_unavailable", ("wake", "sb4kq7m2xw9c5t3n8h6d"))])
def test_a_drained_node_is_undrained(space, api, code, words):
    refuse(api, 503, code, "node local is drained", reason="node_drained")
    done = space(*words)
    assert "space node undrain" in done.stderr and "less memory" not in done.stderr and "in a moment" not in done.stderr
    refuse(api, 503, code, "full or busy")
    assert "undrain" not in space(*words).stderr


def test_without_a_key_it_is_said_where_one_comes_from(space, api, env, tmp_path):
    bare = {k: v for k, v in env.items() if not k.startswith("SPACE_")}
    assert "sudo space keys create" in space("--url", api.url, "ls", env=bare).stderr
    config = tmp_path / "xdg/space/config"
    config.parent.mkdir(parents=True)
    config.write_text("key_file = my.key\n", encoding="ascii")
    (config.parent / "my.key").write_text(api.key + "\n", encoding="ascii")
    (config.parent / "my.key").chmod(0o600)
    done = space("--url", api.url, "ls", env=bare)
    assert done.returncode == 1 and f"write url = {api.url} into it" in done.stderr and str(config) in done.stderr
    config.write_text(f"url = {api.url}\nkey_file = my.key\n", encoding="ascii")
    assert space("ls", env=bare, cwd="/").returncode == 0, "relative to the file, from any directory"


def test_a_key_file_can_be_read_by_whom_it_is_for(space, env, tmp_path):
    nobody = pwd.getpwnam("nobody")
    done = space("keys", "create", "ci", "--out", "ci.key", cwd=tmp_path)
    assert done.returncode == 0 and f"key_file = {tmp_path}/ci.key" in done.stderr and f"--key-file {tmp_path}/ci.key" in done.stderr
    assert space("keys", "create", "ci", "--out", "no.key", "--owner", "nosuchuser", cwd=tmp_path).returncode == 2
    assert not (tmp_path / "no.key").exists()
    if os.geteuid() != 0:
        done = space("keys", "create", "ci", "--out", "no.key", "--owner", "root", cwd=tmp_path)
        assert done.returncode == 1 and "sudo" in done.stderr and not (tmp_path / "no.key").exists()
        return
    assert "--owner USER" in done.stderr
    for name, words, more in [("a.key", ["--owner", "nobody"], {}), ("b.key", [], {"SUDO_UID": str(nobody.pw_uid)})]:
        done = space("keys", "create", "ci", "--out", name, *words, cwd=tmp_path, env={**env, **more})
        made = (tmp_path / name).stat()
        assert done.returncode == 0 and "owner nobody" in done.stderr
        assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (nobody.pw_uid, nobody.pw_gid, 0o600)


def test_what_was_never_made_is_not_named(space, api):
    refuse(api, 404, "not_found", "there is no checkpoint", resource="checkpoint", sandbox_id="sb4kq7m2xw9c5t3n8h6d")
    assert "sb4kq7m2xw9c5t3n8h6d" not in space("create", "--checkpoint", "ck4kq7m2xw9c5t3n8h6d").stderr
    refuse(api, 500, "internal", "it broke", sandbox_id="sb4kq7m2xw9c5t3n8h6d")
    assert "sandbox sb4kq7m2xw9c5t3n8h6d" in space("create", "base").stderr


def test_an_errno_is_said_once(space, api):
    refuse(api, 400, "invalid_request", "cannot execute /nosuch: No such file or directory", errno="ENOENT")
    assert "errno" not in space("exec", "sb4kq7m2xw9c5t3n8h6d", "--", "/nosuch").stderr
    refuse(api, 400, "invalid_request", "cannot execute /nosuch", errno="ENOENT")
    assert "errno ENOENT" in space("exec", "sb4kq7m2xw9c5t3n8h6d", "--", "/nosuch").stderr


def test_usage_that_was_taken_for_something_else(space):
    done = space("help", "delete")
    assert done.returncode == 2 and "see rm" in done.stderr and "`space help`" in done.stderr and "--help" not in done.stderr
    assert space("ls", "--limit", "0").returncode == 2


def candidates(space, *words):
    return set(space("__complete", "--", *words).stdout.split())


def test_completions_of_subcommands_and_values(space, api):
    box = api.create({"template": "base", "name": "box"})["id"]
    clean = checkpoint(api, box, None)
    assert candidates(space, "node", "") == {"ls", "drain", "undrain"}
    assert candidates(space, "keys", "") == {"ls", "create", "rm"}
    assert candidates(space, "checkpoint", "c") == {"create"}
    assert candidates(space, "checkpoint", "create", "") == {"box"}
    assert candidates(space, "checkpoint", "rm", "") == candidates(space, "create", "--checkpoint", "") == {clean}
    assert candidates(space, "rollback", "box", "") == {clean}
    assert candidates(space, "node", "drain", "") == {"local"}
    assert "suspended" in candidates(space, "ls", "--state", "s")


def test_a_name_that_no_key_has(space):
    done = space("keys", "rm", "nosuch")
    assert done.returncode == 1 and "no key is called nosuch" in done.stderr


# ---- checkpoints by name ----

def checkpoint(api, sandbox, name):
    made = {"id": fake_api.make_id("ck"), "name": name, "sandbox_id": sandbox, "memory": True, "size_bytes": 1 << 20,
            "created_at": "2026-01-01T00:00:00.000Z"}
    api.checkpoints.append(made)
    return made["id"]


def test_checkpoints_are_listed_and_named(space, api):
    box = api.create({"template": "base", "name": "box"})["id"]
    gone = "sb4kq7m2xw9c5t3n8h6d"
    clean, other, old = checkpoint(api, box, "clean"), checkpoint(api, box, None), checkpoint(api, gone, "old")
    table = space("checkpoint", "ls").stdout
    assert all(word in table for word in (clean, other, old, gone))
    assert old not in space("checkpoint", "ls", "box").stdout and clean in space("checkpoint", "ls", "box").stdout
    assert old in space("checkpoint", "ls", gone).stdout
    refused = space("checkpoint", "ls", "deleted")
    assert refused.returncode == 1 and "`space checkpoint ls`" in refused.stderr

    def sent(path):
        return [b["checkpoint_id"] for m, p, b, _ in api.requests if m == "POST" and path in p][-1]

    assert space("create", "--checkpoint", "clean").returncode == 0 and sent("/v1/sandboxes?") == clean
    assert space("rollback", "box", "clean").returncode == 0 and sent("/rollback") == clean
    assert space("rollback", "box", other).returncode == 0 and sent("/rollback") == other
    assert "no checkpoint is called old" in space("rollback", "box", "old").stderr, "it is another sandbox's"
    checkpoint(api, gone, "clean")
    assert space("rollback", "box", "clean").returncode == 0, "this sandbox has only one"
    done = space("checkpoint", "rm", "clean")
    assert done.returncode == 1 and "more than one" in done.stderr and len(api.checkpoints) == 4
    assert space("checkpoint", "rm", "old", other).returncode == 0 and len(api.checkpoints) == 2


def test_a_public_port_without_a_listener_has_no_address(space, api):
    box = api.create({"template": "base", "name": "box"})["id"]
    api.route = lambda *unused: (200, {"items": [{"port": 9999, "address": None, "process_id": None, "public": True, "url": None}],
                                       "next_cursor": None})
    assert space("ports", box).stdout.splitlines()[1].split() == ["9999", "-", "-", "yes", "-"]
