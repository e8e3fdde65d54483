"""Files of a sandbox: content in both directions, the tree, errors, archives, hostile names."""

import base64
import gzip
import hashlib
import http.client
import io
import os
import subprocess
import tarfile
import threading

import pytest

from harness import machine, poll
from harness.files import Files

TEXT = "grüße\n".encode()


@pytest.fixture(scope="module")
def box(installation):
    sandbox = installation.api.create()["id"]
    yield sandbox
    installation.api.delete(sandbox)


@pytest.fixture
def files(api, box):
    return Files(api, box)


@pytest.fixture
def folder(api, box, request):
    path = "/home/user/" + request.node.name.partition("[")[0]
    api.check_output(box, ["mkdir", "-p", path])
    return path


class TestContent:
    def test_what_was_put_is_read(self, api, box, files):
        entry = files.put("notes.txt", TEXT)
        assert (entry["path"], entry["name"], entry["type"]) == ("/home/user/notes.txt", "notes.txt", "file")
        assert (entry["size_bytes"], entry["mode"], entry["user"], entry["group"], entry["uid"]) == (
            len(TEXT), "0644", "user", "user", 1000)
        assert files.read("notes.txt") == files.read("/home/user/notes.txt") == TEXT
        assert api.check_output(box, ["cat", "notes.txt"]) == TEXT.decode()

    def test_binary_and_empty(self, files, folder):
        for name, data in (("all", bytes(range(256)) * 1000), ("empty", b"")):
            files.put(f"{folder}/{name}", data)
            assert files.read(f"{folder}/{name}") == data

    def test_headers_of_content(self, api, files, folder):
        files.put(f"{folder}/a", TEXT)
        answer = api.expect(200, "GET", files.at(path=f"{folder}/a"))
        assert int(answer.headers["Content-Length"]) == len(TEXT)
        assert answer.headers["Accept-Ranges"] == "bytes" and answer.headers["Last-Modified"]
        head = api.expect(200, "HEAD", files.at(path=f"{folder}/a"))
        assert int(head.headers["Content-Length"]) == len(TEXT) and head.body == b""

    @pytest.mark.parametrize("header,status,want", [
        ("bytes=0-4", 206, b"01234"), ("bytes=5-5", 206, b"5"), ("bytes=990-", 206, b"0123456789"),
        ("bytes=-3", 206, b"789"), ("bytes=-5000", 206, b"0123456789" * 100), ("bytes=995-5000", 206, b"56789"),
        ("bytes=1000-", 416, None), ("bytes=5-4", 200, b"0123456789" * 100), ("lines=1-2", 200, b"0123456789" * 100),
        ("bytes=0-1,4-5", 200, b"0123456789" * 100)])
    def test_ranges(self, api, files, folder, header, status, want):
        files.put(f"{folder}/ten", b"0123456789" * 100)
        answer = api.ask("GET", files.at(path=f"{folder}/ten"), headers={"Range": header})
        assert answer.status == status, answer
        if want is not None:
            assert answer.body == want
        if status == 206:
            begin = 1000 - len(want) if header.startswith("bytes=-") else int(header[6:].split("-")[0])
            assert answer.headers["Content-Range"] == f"bytes {begin}-{begin + len(want) - 1}/1000"
        if status == 416:
            assert answer.headers["Content-Range"] == "bytes */1000"

    def test_mode_parents_and_owner(self, api, box, files, folder):
        entry = files.put(f"{folder}/deep/er/run.sh", b"#!/bin/sh\necho ran\n", mode="0755")
        assert entry["mode"] == "0755"
        assert api.check_output(box, [f"{folder}/deep/er/run.sh"]) == "ran\n"
        answer = files.ask("PUT", raw=b"x", path=f"{folder}/no/such", parents="false")
        assert (answer.status, answer.details["errno"]) == (404, "ENOENT")
        root = files.put("/etc/from-api", b"x", user="root")
        assert (root["uid"], root["user"]) == (0, "root")
        assert files.put("rooted", b"x", user="root")["path"] == "/root/rooted"

    def test_a_replaced_file_keeps_its_mode_and_is_never_half(self, api, box, files, folder):
        path = f"{folder}/swap"
        files.put(path, b"a" * 300_000, mode="0640")
        stop = threading.Event()
        process, session = api.start(box, f"while :; do sha256sum {path}; done 2>&1", timeout_seconds=60)
        try:
            for index in range(20):
                assert files.put(path, (b"b" if index % 2 else b"a") * 300_000)["mode"] == "0640"
        finally:
            stop.set()
            api.post(f"/v1/sandboxes/{box}/processes/{process['id']}/kill")
        sums = {line.split()[0] for line in api.output(session["id"]).decode().splitlines()[:-1]}
        assert sums <= {hashlib.sha256(c * 300_000).hexdigest() for c in (b"a", b"b")}

    def test_a_planted_link_redirects_nobody(self, api, box, files, folder):
        """In /tmp a link is followed for its owner only, as by programs of the guest."""
        api.check_output(box, f"echo old > {folder}/target && ln -s {folder}/target /tmp/planted")
        answer = files.ask("PUT", raw=b"new", path="/tmp/planted", user="root")
        assert answer.status == 403 and answer.details["errno"] == "EACCES", answer
        assert files.read(f"{folder}/target") == b"old\n"
        files.put("/tmp/planted", b"mine")
        assert files.read(f"{folder}/target") == b"mine"

    def test_a_cut_upload_leaves_the_old_file(self, api, box, files, folder):
        path = f"{folder}/precious"
        files.put(path, b"old")
        for size in (1, 70_000, 3_000_000):
            raw = api.raw_socket()
            raw.sendall((f"PUT {files.at(path=path)} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {api.key}\r\n"
                         f"Content-Length: {size + 10}\r\n\r\n").encode() + b"n" * size)
            raw.close()
        poll.until(lambda: api.check_output(box, f"ls -A {folder}") == "precious\n", 20, "only the old file is left")
        assert files.read(path) == b"old"

    def test_chunked_uploads(self, api, installation, files, folder):
        connection = api.connect()
        connection.request("PUT", files.at(path=f"{folder}/chunked"), body=iter([b"abc", b"", b"d" * 100_000]),
                           headers={"Authorization": f"Bearer {api.key}"}, encode_chunked=True)
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()
        connection.close()
        assert files.read(f"{folder}/chunked") == b"abc" + b"d" * 100_000

    def test_gzip_both_ways(self, api, files, folder):
        data = b"the same again " * 50_000
        files.put(f"{folder}/z", gzip.compress(data), headers={"Content-Encoding": "gzip"})
        assert files.read(f"{folder}/z") == data
        answer = api.expect(200, "GET", files.at(path=f"{folder}/z"), headers={"Accept-Encoding": "gzip"})
        assert answer.headers["Content-Encoding"] == "gzip" and len(answer.body) < len(data) / 10
        assert gzip.decompress(answer.body) == data

    def test_broken_gzip_is_refused_and_changes_nothing(self, files, folder):
        files.put(f"{folder}/z", b"old")
        whole = gzip.compress(b"x" * 100_000)
        for data in (whole[:-5], b"no gzip at all", whole[:40] + b"\xff" * 20):
            answer = files.ask("PUT", raw=data, headers={"Content-Encoding": "gzip"}, path=f"{folder}/z")
            assert (answer.status, answer.code) == (400, "invalid_request"), answer
        assert files.read(f"{folder}/z") == b"old"

    def test_many_files_in_one_request(self, api, box, files, folder):
        boundary = "b0undary--x"
        parts = {"one.txt": b"1\r\n", "sub/two.bin": bytes(range(256)) * 300, "empty": b""}
        body = b"".join(
            b'--%s\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n'
            b"Content-Type: application/octet-stream\r\n\r\n%s\r\n" % (boundary.encode(), name.encode(), data)
            for name, data in parts.items()) + b"--%s--\r\n" % boundary.encode()
        answer = files.ask("POST", raw=body, headers={"Content-Type": f"multipart/form-data; boundary={boundary}"}, path=folder)
        assert answer.status == 200, answer
        for name, data in parts.items():
            assert files.read(f"{folder}/{name}") == data
        cut = files.ask("POST", raw=body[:-30], headers={"Content-Type": f"multipart/form-data; boundary={boundary}"}, path=folder)
        assert cut.status == 400, cut

    def test_ten_gib_sparse_in_constant_memory(self, api, installation, box, files, folder):
        size = 10 << 30
        api.check_output(box, f"truncate -s {size} {folder}/huge && printf end | dd of={folder}/huge bs=1 seek={size - 3} conv=notrunc status=none")
        tail = api.ask("GET", files.at(path=f"{folder}/huge"), headers={"Range": "bytes=-3"})
        assert tail.body == b"end" and tail.headers["Content-Range"] == f"bytes {size - 3}-{size - 1}/{size}"
        before = {p: rss(installation, p) for p in ("space-node", "space-api")}
        connection = api.connect()
        connection.request("GET", files.at(path=f"{folder}/huge"), headers={"Authorization": f"Bearer {api.key}"})
        answer = connection.getresponse()
        assert answer.status == 200 and int(answer.headers["Content-Length"]) == size
        # A part of it is enough to see the memory; the whole takes minutes under emulation.
        for _ in range(256):
            assert answer.read(1 << 20).count(0) == 1 << 20
        grown = {p: rss(installation, p) - before[p] for p in before}
        connection.sock.close()
        connection.close()
        assert all(mib < 16 for mib in grown.values()), grown
        assert api.check_output(box, ["echo", "alive"]) == "alive\n"

    def test_a_slow_reader_costs_nothing(self, api, installation, box, files, folder):
        api.check_output(box, f"head -c 200000000 /dev/zero > {folder}/big")
        before = rss(installation, "space-node") + rss(installation, "space-api")
        lazy = []
        for _ in range(8):
            raw = api.raw_socket()
            raw.sendall(f"GET {files.at(path=folder + '/big')} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {api.key}\r\n\r\n".encode())
            assert raw.recv(1000)
            lazy.append(raw)
        assert files.read(f"{folder}/big") == bytes(200_000_000)
        grown = rss(installation, "space-node") + rss(installation, "space-api") - before
        for raw in lazy:
            raw.close()
        assert grown < 32, grown


def rss(installation, program):
    """MiB of private memory."""
    status = machine.status(installation.daemon(program))
    return int(status["RssAnon"].split()[0]) / 1024


class TestTree:
    def test_stat_of_every_kind(self, api, box, files, folder):
        api.check_output(box, f"cd {folder} && echo x > file && mkdir dir && ln -s file link && mkfifo pipe && ln -s gone dangling")
        kinds = {name: files.stat(f"{folder}/{name}") for name in ("file", "dir", "link", "pipe", "dangling")}
        assert {name: e["type"] for name, e in kinds.items()} == {
            "file": "file", "dir": "directory", "link": "symlink", "pipe": "other", "dangling": "symlink"}
        assert kinds["link"]["symlink_target"] == "file" and kinds["file"]["symlink_target"] is None
        assert kinds["file"]["size_bytes"] == 2 and kinds["file"]["modified_at"].endswith("Z")

    def test_list_by_depth_and_page(self, api, box, files, folder):
        api.check_output(box, f"cd {folder} && mkdir -p a/b/c d && touch a/1 a/b/2 a/b/c/3 z")
        assert [e["name"] for e in files.list(folder)["items"]] == ["a", "d", "z"]
        deep = [e["path"].removeprefix(folder + "/") for e in files.list(folder, depth=3)["items"]]
        assert sorted(deep) == sorted(["a", "a/1", "a/b", "a/b/2", "a/b/c", "d", "z"])
        paged = [e["path"].removeprefix(folder + "/") for e in files.list_all(folder, depth=3, limit=2)]
        assert paged == deep
        picked = api.expect(200, "GET", files.at("/list", path=folder, fields="name,type", limit=2), check=False).json
        assert picked["items"] == [{"name": "a", "type": "directory"}, {"name": "d", "type": "directory"}]
        rest = files.at("/list", path=folder, fields="name", cursor=picked["next_cursor"])
        assert api.expect(200, "GET", rest, check=False).json["items"] == [{"name": "z"}]
        assert files.ask("GET", "/list", path=folder, fields="name,nosuch").details["field"] == "fields"

    def test_many_entries(self, api, box, files, folder):
        api.check_output(box, f"cd {folder} && seq -f 'entry-%06g' 1 5000 | xargs touch", timeout_seconds=120)
        names = [e["name"] for e in files.list_all(folder, limit=1000)]
        assert names == [f"entry-{i:06d}" for i in range(1, 5001)]
        files.delete(folder, recursive="true")
        assert files.ask("GET", "/stat", path=folder).status == 404

    def test_pages_are_stable_under_changes(self, api, box, files, folder):
        api.check_output(box, f"cd {folder} && touch $(seq -w 1 50)")
        first = files.list(folder, limit=10)
        api.check_output(box, f"cd {folder} && rm 10 11 && touch 055 10a")
        rest = files.list_all(folder, limit=7, ) if first["next_cursor"] is None else []
        cursor = first["next_cursor"]
        while cursor:
            page = files.list(folder, limit=7, cursor=cursor)
            rest += page["items"]
            cursor = page["next_cursor"]
        names = [e["name"] for e in first["items"] + rest]
        assert len(set(names)) == len(names)
        assert {f"{i:02d}" for i in range(1, 51)} - {"11"} <= set(names)

    def test_make_move_delete(self, api, box, files, folder):
        assert files.post("mkdir", path=f"{folder}/x/y")["type"] == "directory"
        files.post("mkdir", path=f"{folder}/x/y")
        files.put(f"{folder}/x/y/f", b"1")
        assert files.post("move", **{"from": f"{folder}/x/y/f", "to": f"{folder}/g"})["path"] == f"{folder}/g"
        answer = files.ask("DELETE", path=f"{folder}/x")
        assert (answer.status, answer.details["errno"]) == (409, "ENOTEMPTY")
        files.delete(f"{folder}/x", recursive="true")
        files.delete(f"{folder}/g")
        assert api.check_output(box, f"ls -A {folder}") == ""

    def test_move_to_another_filesystem(self, api, box, files, folder):
        there = "/dev/shm/moved"
        files.put(f"{folder}/f", b"content" * 100_000, mode="0640")
        before = files.stat(f"{folder}/f")
        moved = files.post("move", **{"from": f"{folder}/f", "to": there})
        assert {k: moved[k] for k in ("size_bytes", "mode", "user", "modified_at")} == {k: before[k] for k in ("size_bytes", "mode", "user", "modified_at")}
        assert files.read(there) == b"content" * 100_000
        assert files.ask("GET", "/stat", path=f"{folder}/f").status == 404
        files.put(f"{folder}/f", b"other")
        answer = files.ask("POST", "/move", {"from": there, "to": f"{folder}/f", "replace": False})
        assert (answer.status, answer.details["errno"]) == (409, "EEXIST")
        files.post("move", **{"from": there, "to": f"{folder}/f"})
        assert files.read(f"{folder}/f") == b"content" * 100_000
        files.post("mkdir", path=f"{folder}/d")
        answer = files.ask("POST", "/move", {"from": f"{folder}/d", "to": "/dev/shm/d"})
        assert (answer.status, answer.code, answer.details["errno"]) == (409, "conflict", "EXDEV")
        assert api.check_output(box, f"ls -A /dev/shm; ls -A {folder}") == "d\nf\n"

    def test_mode_and_owner(self, api, box, files, folder):
        api.check_output(box, f"mkdir {folder}/t && touch {folder}/t/a {folder}/t/b && ln -s /etc/passwd {folder}/t/l")
        files.post("chmod", path=f"{folder}/t", mode="0700", recursive=True)
        assert api.check_output(box, f"stat -c %a {folder}/t {folder}/t/a /etc/passwd") == "700\n700\n644\n"
        files.post("chown", path=f"{folder}/t", owner="root:root", recursive=True, user="root")
        assert api.check_output(box, f"stat -c %U {folder}/t /etc/passwd; sudo stat -c %U {folder}/t/a") == "root\nroot\nroot\n"
        answer = files.ask("POST", "/chown", {"path": f"{folder}/t", "owner": "user"})
        assert (answer.status, answer.details["errno"]) == (403, "EPERM")


class TestErrors:
    @pytest.mark.parametrize("path,status,errno", [
        ("/no/such/file", 404, "ENOENT"), ("/etc", 409, "EISDIR"), ("/etc/shadow", 403, "EACCES"),
        ("/etc/passwd/x", 409, "ENOTDIR"), ("/home/user/" + "n" * 300, 409, "ENAMETOOLONG"), ("/" + "a/" * 3000, 409, "ENAMETOOLONG")])
    def test_reads(self, files, path, status, errno):
        answer = files.ask("GET", path=path)
        assert (answer.status, answer.details["errno"]) == (status, errno), answer

    @pytest.mark.parametrize("path,status,errno", [
        ("/etc/new", 403, "EACCES"), ("/home/user", 409, "EISDIR"), ("/etc/passwd/x", 409, "ENOTDIR"),
        ("/home/user/" + "n" * 300, 409, "ENAMETOOLONG"), ("/proc/version", 403, "EACCES")])
    def test_writes(self, files, path, status, errno):
        answer = files.ask("PUT", raw=b"x", path=path)
        assert (answer.status, answer.details["errno"]) == (status, errno), answer

    @pytest.mark.parametrize("query,field", [
        ({}, "path"), ({"path": ""}, "path"), ({"path": "a\0b"}, "path"), ({"path": "a", "user": "nobody-here"}, "user"),
        ({"path": "a", "mode": "999"}, "mode"), ({"path": "a", "mode": "17777"}, "mode"), ({"path": "a", "parents": "maybe"}, "parents"),
        ({"path": "a", "what": "1"}, "what")])
    def test_bad_queries(self, files, query, field):
        answer = files.ask("PUT", raw=b"x", **query)
        assert answer.status == 400 and answer.details["field"] == field, answer

    def test_bad_bodies(self, files):
        for what, body, field in [("mkdir", {}, "path"), ("mkdir", {"path": 7}, "path"), ("move", {"from": "a"}, "to"),
                                  ("chmod", {"path": "a", "mode": "rw"}, "mode"), ("chown", {"path": "a"}, "owner"),
                                  ("mkdir", {"path": "a", "x": 1}, "x"), ("chmod", {"path": "a", "mode": "0644", "recursive": 1}, "recursive")]:
            answer = files.ask("POST", f"/{what}", body)
            assert answer.status == 400 and answer.details["field"] == field, (what, body, answer)

    def test_fifos_devices_and_sockets_block_nothing(self, api, box, files, folder):
        api.check_output(box, f"cd {folder} && mkfifo pipe && sudo mknod null c 1 3 && sudo mknod tty c 5 0 && ln -s pipe to-pipe "
                              "&& python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'")
        for name in ("pipe", "null", "tty", "to-pipe", "sock"):
            for method in ("GET", "PUT"):
                answer = files.ask(method, raw=b"x" if method == "PUT" else None, path=f"{folder}/{name}", user="root")
                assert answer.status == 409, (name, method, answer)
        assert api.check_output(box, f"stat -c %F {folder}/null {folder}/pipe") == "character special file\nfifo\n"

    def test_symlink_loops_end(self, api, box, files, folder):
        api.check_output(box, f"cd {folder} && ln -s b a && ln -s a b && ln -s . self")
        assert files.ask("GET", path=f"{folder}/a").details["errno"] == "ELOOP"
        assert len(files.list(folder, depth=64)["items"]) == 3

    def test_a_full_disk(self, api, installation):
        box = api.create()["id"]
        files = Files(api, box)
        try:
            # Most of it at once, the rest block by block until nothing fits.
            api.run(box, "fallocate -l $(($(df --output=avail -k / | tail -1) - 20480))K /home/user/fill;"
                         " dd if=/dev/zero of=/home/user/rest bs=64K 2>/dev/null; sync", timeout_seconds=600)
            answer = files.ask("PUT", raw=b"x" * 64_000_000, path="/home/user/late")
            assert (answer.status, answer.code, answer.details["errno"]) == (507, "storage_full", "ENOSPC"), answer
            assert files.ask("GET", "/stat", path="/home/user/late").status == 404
            files.delete("/home/user/fill")
            files.delete("/home/user/rest")
            files.put("/home/user/late", b"fits now")
        finally:
            api.delete(box)

    def test_a_sandbox_that_is_not_there(self, api):
        answer = api.ask("GET", "/v1/sandboxes/sb000000000000000000/files?path=/etc/hosts")
        assert (answer.status, answer.details["resource"]) == (404, "sandbox")


class TestNames:
    NAMES = [b"two\nlines", b" lead and trail ", b"\xff\xfe not utf8", "ü€😀".encode(), b"-rf", b"%41%", b"a?b#c&d=e", b"back\\slash",
             b"\x01\x7f", b"'\"", b"n" * 255]

    def test_names_of_any_bytes(self, api, box, files, folder):
        for name in self.NAMES:
            path = folder.encode() + b"/" + name
            answer = files.ask("PUT", raw=b"in " + name, path=path)
            assert answer.status == 201, (name, answer)
            assert files.ask("GET", path=path).body == b"in " + name
        listed = {base64.b64decode(e["name_base64"]) if e.get("name_base64") else e["name"].encode()
                  for e in files.list_all(folder)}
        assert listed == set(self.NAMES)
        for name in self.NAMES:
            files.delete(folder.encode() + b"/" + name)
        assert api.check_output(box, ["ls", "-A", folder]) == ""

    def test_climbing_reaches_only_what_the_user_reaches(self, files):
        assert files.read("../../etc/hostname") == files.read("/etc/hostname")
        assert files.ask("GET", path="../../../../../../etc/shadow").details["errno"] == "EACCES"


class TestTar:
    def test_a_tree_there_and_back(self, api, box, files, folder):
        api.check_output(box, f"cd {folder} && mkdir -p src/deep && echo one > src/a && printf x > src/deep/b && chmod 750 src/deep "
                              f"&& ln -s a src/link && ln src/a src/hard && truncate -s 5M src/sparse && touch 'src/new\nline' "
                              f"&& mkdir src/node_modules && touch src/node_modules/x")
        answer = api.expect(200, "GET", files.at("/tar", path=f"{folder}/src", exclude="node_modules"))
        archive = tarfile.open(fileobj=io.BytesIO(answer.body))
        names = {m.name.removeprefix("./").rstrip("/") for m in archive.getmembers()} - {"", "."}
        assert names == {"a", "deep", "deep/b", "link", "hard", "sparse", "new\nline"}
        put = api.expect(200, "PUT", files.at("/tar", path=f"{folder}/copy"), raw=answer.body)
        assert put.json
        assert api.check_output(box, f"cd {folder} && diff -r src copy | grep -v node_modules; stat -c %a copy/deep; readlink copy/link") == "750\na\n"

    @pytest.mark.parametrize("how,pack", [("gzip", gzip.compress), ("zstd", None)])
    def test_compressed(self, api, box, files, folder, how, pack):
        api.check_output(box, f"cd {folder} && mkdir -p t && seq 1 100000 > t/n")
        answer = api.expect(200, "GET", files.at("/tar", path=f"{folder}/t", compression=how))
        tool = {"gzip": ["gzip", "-dc"], "zstd": ["zstd", "-dc"]}[how]
        plain = subprocess.run(tool, input=answer.body, capture_output=True, check=True).stdout
        assert tarfile.open(fileobj=io.BytesIO(plain)).getmember("n").size > 500_000
        api.expect(200, "PUT", files.at("/tar", path=f"{folder}/{how}", compression=how), raw=answer.body)
        assert api.check_output(box, f"cmp {folder}/t/n {folder}/{how}/n && echo same") == "same\n"

    def evil(self, **fields):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as archive:
            good = tarfile.TarInfo("good")
            good.size = 2
            archive.addfile(good, io.BytesIO(b"ok"))
            bad = tarfile.TarInfo(fields.pop("name", "bad"))
            for key, value in fields.items():
                setattr(bad, key, value)
            archive.addfile(bad, io.BytesIO(b"x" * bad.size))
        return made.getvalue()

    @pytest.mark.parametrize("fields", [
        {"name": "../out", "size": 1}, {"name": "/tmp/abs", "size": 1}, {"name": "a/../../out", "size": 1},
        {"type": tarfile.LNKTYPE, "linkname": "../../../etc/passwd"}, {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}])
    def test_evil_archives(self, api, box, files, folder, fields):
        answer = api.ask("PUT", files.at("/tar", path=f"{folder}/in", user="root"), raw=self.evil(**fields))
        assert (answer.status, answer.code, answer.details["errno"]) == (403, "forbidden", "EPERM"), answer
        assert api.run(box, f"ls {folder}/out /tmp/abs {folder}/in/bad", user="root")["stdout"] == ""

    def test_a_symlink_in_an_archive_leads_nobody_out(self, api, box, files, folder):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as archive:
            link = tarfile.TarInfo("door")
            link.type, link.linkname = tarfile.SYMTYPE, "/tmp"
            archive.addfile(link)
            through = tarfile.TarInfo("door/escaped")
            through.size = 1
            archive.addfile(through, io.BytesIO(b"x"))
        api.ask("PUT", files.at("/tar", path=f"{folder}/in"), raw=made.getvalue())
        assert api.run(box, "ls /tmp/escaped")["exit_code"] != 0

    def test_a_cut_or_broken_archive_is_told(self, api, files, folder):
        whole = self.evil(size=5000)
        for data in (whole[:700], b"\xff" * 5000, os.urandom(3000)):
            answer = api.ask("PUT", files.at("/tar", path=f"{folder}/in"), raw=data)
            assert answer.status == 400, answer


class TestConcurrency:
    def test_many_transfers_at_once(self, api, box, files, folder):
        failures = []

        def one(index):
            try:
                data = os.urandom(200_000) + bytes([index])
                mine = Files(api, box)
                mine.put(f"{folder}/{index}", data)
                assert mine.read(f"{folder}/{index}") == data
                api.close()
            except Exception as error:  # pylint: disable=broad-except
                failures.append(error)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not failures, failures[:2]

    def test_a_deleted_sandbox_ends_its_transfers(self, api):
        box = api.create()["id"]
        api.check_output(box, "truncate -s 3G big")
        connection = api.connect()
        connection.request("GET", Files(api, box).at(path="big"), headers={"Authorization": f"Bearer {api.key}"})
        answer = connection.getresponse()
        answer.read(1_000_000)
        api.delete(box)
        try:
            while answer.read(1 << 20):
                pass
        except (http.client.HTTPException, OSError):
            pass
        assert answer.length  # what is still missing: read(n) takes an early end for an end
        connection.close()

    def test_a_restarted_node_breaks_no_later_transfer(self, api, installation, box, files, folder):
        files.put(f"{folder}/x", b"before")
        installation.kill_daemon("space-node")
        installation.wait_ready()
        assert files.read(f"{folder}/x") == b"before"
        files.put(f"{folder}/x", b"after")
        assert files.read(f"{folder}/x") == b"after"
