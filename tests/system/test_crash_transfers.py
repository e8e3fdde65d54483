"""kill -9 of a daemon in the middle of a transfer: nothing half is ever visible, and the same again works."""

import hashlib
import io
import tarfile

import pytest

from harness import poll
from harness.files import Files

MIB = 1 << 20
BOUNDARY = "edge-of-a-part"
PARTS = {"first": hashlib.shake_128(b"first").digest(MIB), "second": hashlib.shake_128(b"second").digest(5 * MIB)}
FORM = b"".join(b'--%s\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n%s\r\n' % (BOUNDARY.encode(), name.encode(), data)
                for name, data in PARTS.items()) + b"--%s--\r\n" % BOUNDARY.encode()
DOWN_BYTES = 40 * MIB
VICTIMS = pytest.mark.parametrize("victim", ["space-api", "space-node"])


def archive():
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as out:
        for name, data in PARTS.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return made.getvalue()


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
    name = "/home/user/" + "".join(c if c.isalnum() else "-" for c in request.node.name)
    api.check_output(box, ["mkdir", name])
    return name


def begin(api, method, path, **head):
    connection = api.raw_socket()
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {api.key}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in head.items()]
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    return connection


def rest_of(connection):
    """What comes until the connection ends, however it does."""
    data = b""
    try:
        while piece := connection.recv(1 << 20):
            data += piece
    except ConnectionError:
        pass
    connection.close()
    return data


def unnamed(api, box, folder):
    """Bytes in files below the folder that have no name yet: an upload that is under way."""
    script = (f"for f in $(find /proc/[0-9]*/fd -lname '{folder}/*deleted*' 2>/dev/null); do stat -Lc %s $f; done")
    return sum(int(size) for size in api.run(box, script, user="root")["stdout"].split())


def cut(api, installation, victim, method, path, body, is_under_way, **head):
    """Sends most of the body, kills once a part of it has got there; there must be no success."""
    connection = begin(api, method, path, Content_Length=len(body), **head)
    connection.sendall(body[:-2 * MIB])
    poll.until(is_under_way, 60, "a part of it is in the guest")
    installation.kill_daemon(victim)
    assert not rest_of(connection).startswith(b"HTTP/1.1 2")
    api.close()
    installation.wait_ready()


@VICTIMS
def test_a_file_goes_in(api, installation, box, files, folder, victim):
    path = f"{folder}/precious"
    files.put(path, b"old")
    cut(api, installation, victim, "PUT", files.at(path=path), PARTS["second"], lambda: unnamed(api, box, folder) > 0)
    poll.until(lambda: unnamed(api, box, folder) == 0, 60, "the half of it is gone")
    assert api.check_output(box, ["ls", "-A", folder]) == "precious\n"
    assert files.read(path) == b"old"
    api.expect(200, "PUT", files.at(path=path), raw=PARTS["second"])
    assert files.read(path) == PARTS["second"] and api.check_output(box, ["ls", "-A", folder]) == "precious\n"


@VICTIMS
def test_a_form_goes_in(api, installation, box, files, folder, victim):
    head = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    files.put(f"{folder}/second", b"old")
    cut(api, installation, victim, "POST", files.at(path=folder), FORM,
        lambda: api.run(box, ["test", "-e", f"{folder}/first"])["exit_code"] == 0 and unnamed(api, box, folder) > 0,
        Content_Type=head["Content-Type"])
    poll.until(lambda: unnamed(api, box, folder) == 0, 60, "the half of it is gone")
    # Each part for itself: one was whole.
    assert api.check_output(box, ["ls", "-A", folder]) == "first\nsecond\n"
    assert files.read(f"{folder}/first") == PARTS["first"] and files.read(f"{folder}/second") == b"old"
    api.expect(200, "POST", files.at(path=folder), raw=FORM, headers=head)
    assert all(files.read(f"{folder}/{name}") == data for name, data in PARTS.items())
    assert api.check_output(box, ["ls", "-A", folder]) == "first\nsecond\n"


@VICTIMS
def test_an_archive_goes_in(api, installation, box, files, folder, victim):
    """Not atomic as a whole, and never called done when it is not; again it is whole."""
    path, body = files.at("/tar", path=folder), archive()
    cut(api, installation, victim, "PUT", path, body, lambda: api.run(box, ["test", "-e", f"{folder}/first"])["exit_code"] == 0)
    api.expect(200, "PUT", path, raw=body)
    assert all(files.read(f"{folder}/{name}") == data for name, data in PARTS.items())
    assert api.check_output(box, ["ls", "-A", folder]) == "first\nsecond\n"


@VICTIMS
def test_a_file_comes_out(api, installation, box, files, folder, victim):
    path = f"{folder}/down"
    want = api.check_output(box, f"head -c {DOWN_BYTES} /dev/urandom >{path}; sha256sum <{path}").split()[0]
    connection = begin(api, "GET", files.at(path=path))
    got = b""
    while not got.partition(b"\r\n\r\n")[2]:
        got += connection.recv(65536)
    installation.kill_daemon(victim)
    head, _, body = (got + rest_of(connection)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and f"content-length: {DOWN_BYTES}".encode() in head.lower()
    assert 0 < len(body) < DOWN_BYTES
    api.close()
    installation.wait_ready()
    rest = api.expect(206, "GET", files.at(path=path), headers={"Range": f"bytes={len(body)}-"})
    assert hashlib.sha256(body + rest.body).hexdigest() == want


@VICTIMS
@pytest.mark.long
def test_an_archive_comes_out(api, installation, box, files, folder, victim):
    want = api.check_output(box, f"cd {folder} && head -c {DOWN_BYTES} /dev/urandom >down; sha256sum <down").split()[0]
    connection = begin(api, "GET", files.at("/tar", path=folder))
    got = connection.recv(65536)
    installation.kill_daemon(victim)
    answer = got + rest_of(connection)
    # Without its last chunk it is no whole answer to anybody.
    assert answer.startswith(b"HTTP/1.1 200 ") and b"chunked" in answer[:2000] and not answer.endswith(b"\r\n0\r\n\r\n")
    assert len(answer) < DOWN_BYTES
    api.close()
    installation.wait_ready()
    whole = api.expect(200, "GET", files.at("/tar", path=folder)).body
    with tarfile.open(fileobj=io.BytesIO(whole)) as members:
        assert hashlib.sha256(members.extractfile("down").read()).hexdigest() == want
