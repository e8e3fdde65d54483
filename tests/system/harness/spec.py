"""The OpenAPI document, and whether an answer is what it promises."""

import json
import pathlib
import re
import urllib.parse

from . import schema

ROOT = pathlib.Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "src" / "api" / "openapi.json"
RATE = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
REQUEST_ID = re.compile(r"^[A-Za-z0-9._-]{1,64}$")


def as_meant(described, text):
    """A parameter's text as the value that it stands for; the text itself where it is none of that type."""
    forms = {"integer": r"-?\d+", "number": r"-?\d+(\.\d+)?", "boolean": "true|false"}
    if re.fullmatch(forms.get(described.get("type"), "(?!)"), text):
        return json.loads(text)
    if described.get("format") == "date-time" and INSTANT.fullmatch(text):
        return "2026-01-01T00:00:00.000Z"  # answers have one form of a time, requests all of RFC 3339
    return text


class Spec:
    # Which (operation, status, code) were seen, by all installations: the coverage of the document by the tests.
    seen = set()

    def __init__(self, path=DOCUMENT):
        self.document = json.loads(path.read_text(encoding="utf-8"))
        self.routes = []
        for template, item in self.document["paths"].items():
            pattern = re.compile("^" + re.sub(r"\{[^}]+\}", "[^/]+", template) + "$")
            self.routes.append((pattern, template, item))

    def resolve(self, node):
        return schema.resolve(self.document, node)

    def find(self, method, path):
        """(template, operation) for a request; (template, None) when the path lacks the method."""
        for pattern, template, item in sorted(self.routes, key=lambda r: "{" in r[1]):
            if pattern.match(path):
                return template, item.get(method.lower())
        return None, None

    def check(self, method, path, status, headers, body):
        """Raises when the answer is not one that the document describes."""
        path = path.partition("?")[0]
        label = f"{method} {path} -> {status}"
        names = {name.lower(): value for name, value in headers.items()}
        assert REQUEST_ID.match(names.get("x-request-id", "")), f"{label}: no X-Request-Id"
        template, operation = self.find(method, path)
        if method == "HEAD":
            assert not body, f"{label}: a HEAD answer has a body"
            if operation:
                response = self.resolve(operation["responses"].get(str(status)))
                assert response, f"{label}: status not documented for {operation['operationId']}"
                if status < 400:
                    self.check_headers(label, response, names)
                self.seen.add((operation["operationId"], status, None))
            return
        if status >= 400:
            self.check_error(label, operation, template, status, names, body)
            return
        assert operation, f"{label}: the document has no such operation"
        response = self.resolve(operation["responses"].get(str(status)))
        assert response, f"{label}: status not documented for {operation['operationId']}"
        self.seen.add((operation["operationId"], status, None))
        self.check_headers(label, response, names)
        self.check_content(label, response, names, body)

    def check_request(self, method, path, headers, body):
        """Raises when a request that was accepted is not one that the document describes. What is refused may be, too."""
        template, _, query = path.partition("?")
        template, operation = self.find(method, template)
        label = f"{method} {path}, accepted"
        if not operation or operation["operationId"].startswith("proxyPort"):
            return  # an answer's check says the first; the second is what the application in the sandbox is told
        parameters = [self.resolve(parameter) for parameter in operation.get("parameters", [])]
        self.check_query(label, [p for p in parameters if p["in"] == "query"], query)
        names = {name.lower(): value for name, value in headers.items()}
        for parameter in parameters:
            if parameter["in"] == "header" and parameter["name"].lower() in names:
                schema.check(self.document, parameter["schema"], names[parameter["name"].lower()],
                             f"{label}: header {parameter['name']}")
        self.check_body(label, operation.get("requestBody"), names, body)

    def check_query(self, label, parameters, query):
        given = {}
        for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True, errors="surrogateescape"):
            given.setdefault(name, []).append(value)
        for parameter in parameters:
            name, described = parameter["name"], self.resolve(parameter["schema"])
            where = f"{label}: {name}"
            if described.get("type") == "object":  # of the style form, exploded: its properties are parameters
                assert (parameter["style"], parameter["explode"]) == ("form", True), where
                patterns = described["patternProperties"]
                value = {key: given.pop(key)[-1] for key in list(given) if any(re.search(p, key) for p in patterns)}
                schema.check(self.document, parameter["schema"], value, where)
                continue
            values = given.pop(name, [])
            assert values or not parameter.get("required"), f"{where} is missing"
            if described.get("type") == "array":
                schema.check(self.document, parameter["schema"], values, where)
            elif values:
                assert len(values) == 1, f"{where} is given {len(values)} times"
                schema.check(self.document, parameter["schema"], as_meant(described, values[0]), where)
        assert not given, f"{label}: {sorted(given)} not documented"

    def check_body(self, label, described, names, body):
        content = described["content"] if described else {}
        if not body:  # bytes of any kind may be none
            assert not ("application/json" in content and described.get("required")), f"{label}: no body"
            return
        assert described, f"{label}: a body that the document does not know"
        if "application/json" in content:
            schema.check(self.document, content["application/json"]["schema"], json.loads(body), label)
        elif "multipart/form-data" in content:
            have = names.get("content-type", "")
            assert have.startswith("multipart/form-data;"), f"{label}: Content-Type {have!r}"

    def check_headers(self, label, response, names, optional=()):
        for name, header in response.get("headers", {}).items():
            header = self.resolve(header)
            value = names.get(name.lower())
            if value is None:
                assert name in ("Idempotency-Replayed", *optional), f"{label}: header {name} is missing"
                continue
            types = header["schema"].get("type")
            schema.check(
                self.document, header["schema"], int(value) if types == "integer" else value,
                f"{label} header {name}",
            )

    def check_content(self, label, response, names, body):
        if "content" not in response:
            assert not body, f"{label}: a body that the document does not know"
            return
        have = names.get("content-type", "").partition(";")[0]
        media = {name.partition(";")[0]: content for name, content in response["content"].items()}
        assert have in media, f"{label}: Content-Type {have!r}"
        if have == "application/json":
            schema.check(self.document, media[have]["schema"], json.loads(body), label)

    def check_error(self, label, operation, template, status, names, body):
        assert names.get("content-type", "").startswith("application/json"), f"{label}: {names}"
        value = json.loads(body)
        schema.check(self.document, {"$ref": "#/components/schemas/Error"}, value, label)
        error = value["error"]
        if "idempotency-replayed" not in names:
            assert error["request_id"] == names["x-request-id"], f"{label}: two request ids"
        if status in (429, 503):
            assert int(names["retry-after"]) >= 1, f"{label}: Retry-After"
        if error["code"] in ("invalid_request", "payload_too_large"):
            assert error["details"].get("field") or error["details"].get("errno"), (
                f"{label}: names no field: {error}")
        if status == 405:
            assert template and names.get("allow"), f"{label}: Allow"
            return
        if not operation:
            return
        response = self.resolve(operation["responses"].get(str(status)))
        assert response, f"{label}: not documented for {operation['operationId']}: {error}"
        given = [name for name in RATE if name.lower() in names]
        assert set(given) <= set(response["headers"]), f"{label}: {given} not documented"
        # A server that stops, or has no connection left, does not look who asks: all of them or none. The proxy of
        # a port says none.
        is_silent = status == 503 and not given or operation["operationId"].startswith("proxyPort")
        self.check_headers(label, response, names, RATE if is_silent else ())
        codes = response["content"]["application/json"]["examples"]
        assert error["code"] in codes, (
            f"{label}: code {error['code']} not documented for {operation['operationId']}")
        self.seen.add((operation["operationId"], status, error["code"]))
