"""What `space` says to do about a failure, against a stand-in of the API: the remedy must fit the cause."""

import http.server
import json
import os
import pty
import pwd
import ssl
import stat
import subprocess
import threading

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


# ---- what a newcomer meets ----

BOX = "sb4kq7m2xw9c5t3n8h6d"


@pytest.mark.parametrize("words", [("exec", BOX, "--", "true"), ("pause", BOX), ("cp", f"{BOX}:/etc/hosts", ".")])
def test_a_sandbox_in_error_is_woken(space, api, words):
    refuse(api, 409, "failed_precondition", "the sandbox is error, not running: the disk is kept", state="error")
    assert "`space wake SANDBOX`" in space(*words).stderr
    assert "space wake" not in space("wake", BOX).stderr, "a wake that is refused has said why"
    refuse(api, 409, "failed_precondition", "the sandbox is suspended, not running", state="suspended")
    assert "space wake" not in space(*words).stderr


def test_a_number_of_the_api_is_led_back_to_its_option(space, api):
    refuse(api, 400, "invalid_request", "memory_mib must be between 64 and 65536, got 1022976", field="memory_mib")
    assert "option --memory" in space("create", "base", "--memory", "999g").stderr
    assert "option --" not in space("create", "base").stderr
    refuse(api, 400, "invalid_request", "disk_mib must be between 1 and 5, got 6", field="disk_mib")
    assert "option --disk" in space("create", "base", "--disk", "6m").stderr


def test_an_id_is_said_once(space, api):
    refuse(api, 409, "conflict", f"the name box is taken by {BOX}", field="name", sandbox_id=BOX)
    assert space("create", "base", "--name", "box").stderr.count(BOX) == 1
    refuse(api, 409, "conflict", "the name box is taken", field="name", sandbox_id=BOX)
    assert space("create", "base", "--name", "box").stderr.count(BOX) == 1


def test_a_template_and_a_checkpoint_exclude_each_other(space, api):
    both = space("create", "base", "--checkpoint", "ck4kq7m2xw9c5t3n8h6d")
    assert both.returncode == 2 and "exclude each other" in both.stderr and not api.requests
    neither = space("create")
    assert neither.returncode == 2 and "from what?" in neither.stderr


def test_tls_where_none_is_spoken(space, api):
    done = space("--url", api.url.replace("http:", "https:"), "ls")
    assert done.returncode == 3 and "speaks no TLS" in done.stderr and "OpenSSL" not in done.stderr


def test_a_certificate_that_is_not_trusted(space, tmp_path):
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
                   check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda *unused: None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = space("--url", f"https://127.0.0.1:{server.server_address[1]}", "ls")
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 3 and "ca_file" in done.stderr and "space up" not in done.stderr


def test_a_bundle_that_cannot_be_written_is_said_first(space, tmp_path):
    settings = tmp_path / "space.conf"
    settings.write_text("".join(f"{key} = {tmp_path}/{key}\n" for key in ("data_dir", "run_dir", "log_dir", "admin_key_file")),
                        encoding="ascii")
    done = space("doctor", "--config", str(settings), "--bundle", f"{tmp_path}/nosuch/x.tgz")
    assert done.returncode == 1 and done.stdout == "" and "tar" not in done.stderr and "No such file" in done.stderr
    done = space("doctor", "--config", str(settings), "--bundle", str(tmp_path))
    assert done.returncode == 1 and done.stdout == "" and "is a directory" in done.stderr


def test_an_object_store_that_is_not_there_is_named_with_the_command(space, tmp_path):
    settings, store = tmp_path / "space.conf", tmp_path / "store"
    settings.write_text("".join(f"{key} = {tmp_path}/{key}\n" for key in ("data_dir", "run_dir", "log_dir", "admin_key_file")) +
                        f"objects.store = {store}\nnode.vmm_uid_first = {os.geteuid() or 700000}\n", encoding="ascii")

    def check():
        checks = json.loads(space("doctor", "--json", "--config", str(settings)).stdout)["checks"]
        return next(c for c in checks if c["name"] == "object store")

    uid = os.geteuid() or 700000
    missing = check()
    assert missing["status"] == "degraded" and f"install -d -m 0700 -o {uid} -g {uid} {store}" in missing["remedy"]
    store.write_text("", encoding="ascii")
    assert "no directory" in check()["message"]
    store.unlink()
    store.mkdir()
    if os.geteuid() == 0:
        assert "belongs to uid 0" in check()["message"]
        os.chown(store, uid, uid)
    assert check()["status"] == "ok"


def test_a_rollback_finds_the_checkpoint_before_it_asks(env, api):
    box = api.create({"template": "base", "name": "box"})["id"]
    checkpoint(api, box, "clean")
    for name, asks in (("nosuch", False), ("clean", True)):
        master, slave = pty.openpty()
        child = subprocess.Popen([space_binary(), "rollback", "box", name], env=env, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        seen = b""
        while b"[y/N]" not in seen:
            try:
                piece = os.read(master, 1000)
            except OSError:
                break  # it has ended
            seen += piece
        assert (b"[y/N]" in seen) == asks and (b"no checkpoint is called nosuch" in seen) != asks
        if asks:
            os.write(master, b"n\n")
        assert child.wait(20) == 1
        os.close(master)
