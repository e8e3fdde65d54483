"""A small S3 server for tests that takes nothing on trust: signatures (SigV4), checksums and lengths are checked.

Path style, one bucket, in memory: PUT, GET, HEAD and DELETE of objects, ListObjectsV2 in short pages, uploads in parts. `faults` are
answered first, one each: a status, "drop" (the connection is cut) or "cut" (half of the body).
"""

import datetime
import email.utils
import hashlib
import hmac
import http.server
import threading
import urllib.parse
from xml.sax import saxutils

PAGE = 3  # objects of a list, so that there are pages


def sign(secret, date, region, text):
    key = f"AWS4{secret}".encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Refused(Exception):
    def __init__(self, status, code):
        super().__init__(code)
        self.status, self.code = status, code


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *unused):
        pass

    def check(self, url, body):
        """The signature, as the server computes it from what has arrived."""
        server = self.server.s3
        kind, _, rest = self.headers.get("Authorization", "").partition(" ")
        given = dict(part.strip().split("=", 1) for part in rest.split(",") if "=" in part)
        if kind != "AWS4-HMAC-SHA256" or set(given) != {"Credential", "SignedHeaders", "Signature"}:
            raise Refused(403, "AccessDenied")
        access, date, region, service, kind = given["Credential"].split("/")
        if access != server.access_key or (region, service, kind) != (server.region, "s3", "aws4_request"):
            raise Refused(403, "InvalidAccessKeyId")
        names = given["SignedHeaders"].split(";")
        if not {"host", "x-amz-content-sha256", "x-amz-date"} <= set(names):
            raise Refused(403, "AccessDenied")
        if self.headers["x-amz-content-sha256"] != hashlib.sha256(body).hexdigest():
            raise Refused(400, "XAmzContentSHA256Mismatch")
        query = "&".join(sorted(part if "=" in part else part + "=" for part in url.query.split("&") if part))
        canonical = "\n".join([self.command, url.path, query,
                               *(f"{name}:{' '.join(self.headers.get(name, '').split())}" for name in names), "",
                               given["SignedHeaders"], self.headers["x-amz-content-sha256"]])
        stamp = self.headers["x-amz-date"]
        text = "\n".join(["AWS4-HMAC-SHA256", stamp, f"{date}/{region}/s3/aws4_request",
                          hashlib.sha256(canonical.encode()).hexdigest()])
        if not hmac.compare_digest(sign(server.secret_key, date, region, text), given["Signature"]):
            raise Refused(403, "SignatureDoesNotMatch")

    def answer(self, status, body=b"", cut=False, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True

    def serve(self):
        server = self.server.s3
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
        with server.lock:
            server.requests.append((self.command, self.path))
            fault = server.faults.pop(0) if server.faults else None
            try:
                if fault == "drop":
                    self.close_connection = True
                    return
                if isinstance(fault, int):
                    raise Refused(fault, "SlowDown")
                self.check(url, body)
                top, _, key = url.path.lstrip("/").partition("/")
                if top != server.bucket:
                    raise Refused(404, "NoSuchBucket")
                self.do(key, query, body, fault == "cut")
            except Refused as refused:
                self.answer(refused.status, f"<Error><Code>{refused.code}</Code></Error>".encode())

    def do(self, key, query, body, cut):
        server = self.server.s3
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        if self.command == "POST" and "uploads" in query:
            upload = server.begin_upload(key)
            self.answer(200, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode())
        elif self.command == "PUT" and "uploadId" in query:
            server.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
            self.answer(200, ETag=etag)
        elif self.command == "POST":
            parts = server.uploads.pop(query["uploadId"][0])
            if body.count(b"<Part>") != len(parts) or any(
                    f'"{hashlib.md5(part).hexdigest()}"'.encode() not in body for part in parts.values()):
                raise Refused(400, "InvalidPart")
            server.put(key, b"".join(parts[number] for number in sorted(parts)))
            self.answer(200, b"<CompleteMultipartUploadResult/>")
        elif self.command == "PUT":
            server.put(key, body)
            self.answer(200, ETag=etag)
        elif self.command == "DELETE":
            if "uploadId" in query:
                if server.began.get(query["uploadId"][0], ("",))[0] != key:
                    raise Refused(404, "NoSuchUpload")
                server.uploads.pop(query["uploadId"][0])
            else:
                server.objects.pop(key, None)
            self.answer(204)
        elif not key and "uploads" in query:
            self.list_uploads(query["prefix"][0])
        elif not key:
            self.list(query)
        elif key not in server.objects:
            raise Refused(404, "NoSuchKey")
        else:
            self.answer(200, server.objects[key][0], cut=cut)

    def list(self, query):
        server = self.server.s3
        prefix, after = query["prefix"][0], query.get("continuation-token", [""])[0]
        if server.is_stuck:
            after = ""
        keys = [key for key in sorted(server.objects) if key.startswith(prefix) and f"{key}+/=" > after]
        shown = keys[:PAGE]
        text = "".join(f"<Contents><Key>{saxutils.escape(key)}</Key><LastModified>{server.objects[key][1]}</LastModified>"
                       f"<Size>{len(server.objects[key][0])}</Size></Contents>" for key in shown)
        more = len(keys) > PAGE
        token = f"<NextContinuationToken>{shown[-1]}+/=</NextContinuationToken>" if more else ""
        self.answer(200, f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{text}"
                         "</ListBucketResult>".encode(), Date=email.utils.formatdate(usegmt=True))

    def list_uploads(self, prefix):
        server = self.server.s3
        text = "".join(f"<Upload><Key>{saxutils.escape(server.began[one][0])}</Key><UploadId>{one}</UploadId>"
                       f"<Initiator><ID>x</ID></Initiator><Initiated>{server.began[one][1]}</Initiated></Upload>"
                       for one in server.uploads if server.began[one][0].startswith(prefix))
        self.answer(200, f"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{text}</ListMultipartUploadsResult>".encode(),
                    Date=email.utils.formatdate(usegmt=True))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = serve


class S3:
    access_key, secret_key, region, bucket = "AKTEST", "se/cret+KEY", "eu-test-1", "kept"

    def __init__(self):
        self.objects, self.uploads, self.requests, self.faults = {}, {}, [], []
        self.began = {}  # uploads, also ended ones: (key, when)
        self.lock = threading.Lock()
        self.is_stuck = False  # answers each page with the first one
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.s3 = self
        self.endpoint = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @staticmethod
    def now():
        return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")

    def put(self, key, body):
        self.objects[key] = (body, self.now())

    def begin_upload(self, key):
        upload = f"up/{len(self.began) + 1}"
        self.began[upload], self.uploads[upload] = (key, self.now()), {}
        return upload

    def close(self):
        self.http.shutdown()
        self.http.server_close()
