"""Checks a value against the JSON Schema keywords that our OpenAPI document uses.

Stricter than the standard in one point: an object with `properties` and without
`additionalProperties` holds only those, so that an undocumented key of an answer is found.
A keyword that this file does not know is an error of the document or of this file."""

import re

ANNOTATIONS = {"description", "default", "example", "examples", "contentEncoding", "style"}
KNOWN = ANNOTATIONS | {
    "$ref", "type", "format", "enum", "const", "pattern", "minLength", "maxLength", "minimum", "maximum",
    "exclusiveMinimum", "multipleOf", "items", "minItems", "maxItems", "properties", "required",
    "patternProperties", "additionalProperties", "maxProperties", "oneOf",
}
# What a format promises beyond the type; a time is always UTC. None: any bytes.
FORMATS = {"date-time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "binary": None}
TYPES = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


class Mismatch(AssertionError):
    pass


def resolve(document, node):
    while isinstance(node, dict) and "$ref" in node:
        target = document
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part.replace("~1", "/").replace("~0", "~")]
        node = target
    return node


def check(document, schema, value, where="$"):
    schema = resolve(document, schema)
    unknown = set(schema) - KNOWN
    if unknown:
        raise Mismatch(f"{where}: keywords that the checker does not know: {sorted(unknown)}")
    _check_type(schema, value, where)
    if "const" in schema and value != schema["const"]:
        raise Mismatch(f"{where}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        raise Mismatch(f"{where}: {value!r} is none of {schema['enum']}")
    if "oneOf" in schema:
        _check_one_of(document, schema, value, where)
    if isinstance(value, str):
        _check_string(schema, value, where)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_number(schema, value, where)
    elif isinstance(value, list):
        _check_array(document, schema, value, where)
    elif isinstance(value, dict):
        _check_object(document, schema, value, where)


def _check_type(schema, value, where):
    types = schema.get("type")
    if types is None:
        return
    types = types if isinstance(types, list) else [types]
    if not any(TYPES[t](value) for t in types):
        raise Mismatch(f"{where}: {value!r} is not {' or '.join(types)}")


def _check_one_of(document, schema, value, where):
    problems = []
    for branch in schema["oneOf"]:
        if set(branch) == {"required"}:
            if not all(key in value for key in branch["required"]):
                problems.append(f"lacks {branch['required']}")
            continue
        try:
            check(document, branch, value, where)
        except Mismatch as error:
            problems.append(str(error))
    if len(problems) != len(schema["oneOf"]) - 1:
        raise Mismatch(f"{where}: not exactly one alternative holds: {problems}")


def _check_format(schema, value, where):
    if schema["format"] not in FORMATS:
        raise Mismatch(f"{where}: a format that the checker does not know: {schema['format']}")
    form = FORMATS[schema["format"]]
    if form and not form.fullmatch(value):
        raise Mismatch(f"{where}: {value!r} is no {schema['format']}")


def _check_string(schema, value, where):
    if "format" in schema:
        _check_format(schema, value, where)
    if "pattern" in schema and not re.search(schema["pattern"], value):
        raise Mismatch(f"{where}: {value!r} does not match {schema['pattern']}")
    if len(value) < schema.get("minLength", 0):
        raise Mismatch(f"{where}: {value!r} is too short")
    if len(value) > schema.get("maxLength", len(value)):
        raise Mismatch(f"{where}: {len(value)} characters are too many")


def _check_number(schema, value, where):
    if value < schema.get("minimum", value) or value > schema.get("maximum", value):
        raise Mismatch(f"{where}: {value} is out of range")
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        raise Mismatch(f"{where}: {value} is out of range")
    if "multipleOf" in schema and value % schema["multipleOf"] != 0:
        raise Mismatch(f"{where}: {value} is no multiple of {schema['multipleOf']}")


def _check_array(document, schema, value, where):
    if len(value) < schema.get("minItems", 0) or len(value) > schema.get("maxItems", len(value)):
        raise Mismatch(f"{where}: {len(value)} items")
    for index, item in enumerate(value):
        if "items" in schema:
            check(document, schema["items"], item, f"{where}[{index}]")


def _check_object(document, schema, value, where):
    for key in schema.get("required", []):
        if key not in value:
            raise Mismatch(f"{where}: key {key} is missing")
    if len(value) > schema.get("maxProperties", len(value)):
        raise Mismatch(f"{where}: {len(value)} keys")
    properties = schema.get("properties", {})
    extra = schema.get("additionalProperties", "properties" not in schema)
    patterns = schema.get("patternProperties", {})
    for key, item in value.items():
        named = [properties[key]] if key in properties else []
        named += [patterns[pattern] for pattern in patterns if re.search(pattern, key)]
        for one in named:
            check(document, one, item, f"{where}.{key}")
        if named:
            continue
        if extra is False:
            raise Mismatch(f"{where}: key {key} is not documented")
        elif isinstance(extra, dict):
            check(document, extra, item, f"{where}.{key}")
