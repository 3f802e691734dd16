from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from millrace.topology.duration import PATTERN, Duration
from millrace.topology.model import StreamTopology
from millrace.topology.parts import Part
from millrace.topology.scalars import Memory
from millrace.topology.schema import json_schema, reference, schema_of


def properties(node: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        for field, schema in node.get("properties", {}).items():
            yield f"{name}.{field}", schema
        for key, value in node.items():
            yield from properties(value, f"{name}.{key}")
    elif isinstance(node, list):
        for item in node:
            yield from properties(item, name)


def resolved(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return schema["$defs"][field["$ref"].rpartition("/")[2]] if "$ref" in field else field


def test_every_field_is_described():
    schema = json_schema()
    bare = [
        name
        for name, field in properties(schema)
        if not (field.get("description") or resolved(field, schema).get("description"))
    ]
    assert bare == []


def test_the_schema_is_written_as_in_files():
    schema = json_schema()
    spec = schema["$defs"]["Spec"]["properties"]
    assert spec["tupleTimeout"]["default"] == "30s"
    assert spec["window"]["default"] == {"maxRecords": 200000, "maxInterval": "100ms"}
    assert schema["$defs"]["Input"]["required"] == ["from"]
    assert schema["$defs"]["Tracking"]["enum"] == ["On", "Off", True, False]
    assert "class" in schema["$defs"]["CustomPart"]["properties"]
    assert schema["additionalProperties"] is False


def test_nothing_may_be_null_or_a_fraction():
    text = json.dumps(json_schema())
    assert '"null"' not in text
    assert '"number"' not in text
    assert "null" not in text


def test_fields_named_title_or_default_would_be_kept():
    names = {name.rpartition(".")[2] for name, _ in properties(json_schema())}
    fields = {
        alias
        for model in _models(StreamTopology)
        for alias in (f.alias or n for n, f in model.model_fields.items())
    }
    assert names == fields


def test_the_pattern_of_durations_agrees_with_their_reader():
    assert re.fullmatch(PATTERN, "1m30s")
    assert not re.fullmatch(PATTERN, "30")


def test_descriptions_tell_forms_and_bounds_which_kubectl_explain_does_not():
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", reference(), re.MULTILINE))
    assert rows["spec.ackers.replicas"].endswith("From 0 to 64.")
    assert rows["spec.keyGroups"].endswith("From 1 to 4096.")
    assert rows["spec.stateServers.copies"].endswith("From 1 to 8.")
    assert rows["spec.tupleTimeout"].endswith('Such as "100ms", "30s" or "1m30s".')
    assert rows["spec.window.minInterval"].endswith('"1m30s".'), "also where it may be left out"
    assert '"512Mi"' in rows["spec.spark.executors.memory"]
    assert rows["spec.window.maxRecords"].endswith("At least 1."), "no bound of a format"
    assert (
        rows["spec.sources"] == "list of object | required | Where roots come from. At least one."
    )
    assert rows["spec.processors[].inputs[].from"].split(" | ")[1] == "required"
    assert rows["spec.processors"].split(" | ")[1] == ""


def test_a_form_is_told_in_descriptions_alone():
    class Times(Part):
        """A kind of a package's own."""

        all: tuple[Duration, ...] = Field(description="Some times.")
        bare: Memory | None = None

    fields = schema_of(Times)["properties"]
    assert fields["all"]["items"] == {"type": "string", "pattern": PATTERN}
    assert fields["bare"].keys() == {"type", "pattern"}


def test_the_reference_lists_the_fields_in_order():
    rows = re.findall(r"^\| `([^`]+)` \|", reference(), re.MULTILINE)
    assert rows[:3] == ["apiVersion", "kind", "metadata"]
    assert "spec.processors[].inputs[].from" in rows
    assert len(rows) == len(set(rows))


def _models(model: Any, seen: set[Any] | None = None) -> set[Any]:
    from millrace.topology.explain import _model_in

    seen = set() if seen is None else seen
    seen.add(model)
    for field in model.model_fields.values():
        inner = _model_in(field.annotation)
        if inner is not None and inner not in seen:
            _models(inner, seen)
    return seen
