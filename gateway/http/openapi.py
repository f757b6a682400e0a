"""The OpenAPI document, made from the endpoints and their models. Pure."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue, models_json_schema

from turnstile.gateway.http.bearers import named_rights
from turnstile.gateway.http.endpoints import Endpoint
from turnstile.gateway.http.problems import PROBLEM_TYPE, Problem
from turnstile.schema.base import JsonObject

_REF = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_ABOUT = (
    "Turns, conversations and their events. Streams are server-sent events: `state`, `chunk`, `reset` (the streamed "
    "text of a step is void), `card`, `step`, `outcome` and `reconnect`, with ids that `Last-Event-ID` takes."
)


def document(endpoints: Sequence[Endpoint], version: str) -> JsonObject:
    """The whole document."""
    bodies = [model for e in endpoints if (model := e.body) is not None]
    answered = [model for e in endpoints if (model := e.answer) is not None] + [Problem]
    wanted_schemas: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {}
    wanted_schemas |= {(model, "validation"): None for model in bodies}
    wanted_schemas |= {(model, "serialization"): None for model in answered}
    refs, definitions = _schemas(tuple(wanted_schemas))
    paths: dict[str, dict[str, object]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, refs)
    problem = {"content": {PROBLEM_TYPE: {"schema": refs[Problem, "serialization"]}}}
    document: dict[str, object] = {
        "openapi": "3.1.0",
        "info": {"title": "Turnstile", "version": version, "description": _ABOUT, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "responses": {"Problem": {"description": "The request was refused; `code` says why.", **problem}},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token from `turnstile token add`."}
            },
        },
    }
    return cast("JsonObject", document)


@cache
def _schemas(models: tuple[tuple[type[BaseModel], JsonSchemaMode], ...]) -> tuple[Mapping[Any, Any], JsonSchemaValue]:
    """Half a second of computing, for each gateway of a process the same; nobody changes what it returns."""
    return models_json_schema(models, ref_template=_REF, schema_generator=_Schemas)


@cache
def _query_schema(model: type[BaseModel]) -> JsonSchemaValue:
    return model.model_json_schema(schema_generator=_Schemas)


class _Schemas(GenerateJsonSchema):
    """Descriptions without the names that pydantic makes titles of."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _operation(endpoint: Endpoint, refs: Mapping[Any, Any]) -> dict[str, object]:
    answer: object = {"text/event-stream": {"schema": {"type": "string"}}}
    if endpoint.answer is not None:
        answer = {"application/json": {"schema": refs[endpoint.answer, "serialization"]}}
    operation: dict[str, object] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": f"Needs the right `{named_rights(endpoint.right)}`.",
        "parameters": [*_path(endpoint), *_query(endpoint), *_headers(endpoint)],
        "responses": {
            **{
                str(status): {"description": words, **({} if status == HTTPStatus.NO_CONTENT else {"content": answer})}
                for status, words in endpoint.statuses.items()
            },
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if endpoint.streamed:
        operation["requestBody"] = {"required": True, "content": {"*/*": {"schema": {}}}}
    if endpoint.body is not None:
        body = {"application/json": {"schema": refs[endpoint.body, "validation"]}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _path(endpoint: Endpoint) -> list[object]:
    schema = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}
    return [
        {"name": name, "in": "path", "required": True, "schema": schema} for name in _PARAMETER.findall(endpoint.path)
    ]


def _query(endpoint: Endpoint) -> list[object]:
    schema = _query_schema(endpoint.query)
    parameters: list[object] = []
    for name, described in cast("dict[str, dict[str, Any]]", schema.get("properties", {})).items():
        described_schema = dict(described)
        parameter = {
            "name": name,
            "in": "query",
            "required": False,
            "description": described_schema.pop("description", ""),
        }
        variants = described_schema.pop("anyOf", None)
        if variants is not None:  # left out is null: in a query there is no other way to say it
            described_schema |= next(variant for variant in variants if variant.get("type") != "null")
        if described_schema.get("default", 0) is None:
            del described_schema["default"]
        parameters.append({**parameter, "schema": described_schema})
    return parameters


def _headers(endpoint: Endpoint) -> list[object]:
    return [
        {"name": name, "in": "header", "required": False, "description": words, "schema": {"type": "string"}}
        for name, words in endpoint.request_headers.items()
    ]
