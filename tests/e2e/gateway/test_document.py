"""The OpenAPI document: a public validator accepts it, and requests made of it are answered as it says."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.specs.openapi import checks

from tests.support.gateway import client, serving, token_of
from tests.support.tenants import Tenant

pytestmark = pytest.mark.shared_stack

SHARE, MANY = 0.05, 250
"""Of `--fuzz-cases`: 100 in the usual run; from how many on there are also requests that are not allowed."""
LONG_CASES = 10_000


@pytest.fixture(scope="module")
async def patient(here: Any) -> AsyncIterator[str]:
    """A gateway without a rate."""
    async with serving(here, requests_per_second=0.0, heartbeat_seconds=0.2) as url:
        yield url


async def test_the_document_is_one_and_names_every_address(url: str) -> None:
    async with client(url, None) as web:
        document = (await web.get("/v1/openapi.json")).json()
    OpenAPIV31SpecValidator(document).validate()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations) >= 13
    assert all("default" in operation["responses"] for operation in operations)


@pytest.mark.fuzz
async def test_requests_made_of_the_document_are_answered_as_it_says(
    patient: str, tenant: Tenant, fuzz_share: Callable[[float], int]
) -> None:
    """Requests that it allows, which name nothing that is there, and in the long run also ones that it does not.

    A JSON schema cannot say everything (text without NUL, a channel of the token's), so `bad_request` is allowed.
    """
    cases = fuzz_share(SHARE)
    await _answered(patient, tenant, cases, () if cases >= MANY else (schemathesis.GenerationMode.NEGATIVE,))


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_ten_thousand_requests_made_of_the_document_are_answered_as_it_says(patient: str, tenant: Tenant) -> None:
    """The same for longer."""
    await _answered(patient, tenant, LONG_CASES)


async def _answered(url: str, tenant: Tenant, cases: int, without: Sequence[schemathesis.GenerationMode] = ()) -> None:
    token = await token_of(tenant.stack, tenant.project)
    async with client(url, None) as web:
        document = (await web.get("/v1/openapi.json")).json()
    assert await asyncio.to_thread(_try, document, url, token, cases, without) >= cases
    assert await tenant.count("state.agent_inbox") == 0


def _try(
    document: dict[str, Any], url: str, token: str, cases: int, without: Sequence[schemathesis.GenerationMode]
) -> int:
    """Send so many requests; raises for an answer that the document does not tell, or that is an error of ours."""
    schema: Any = schemathesis.openapi.from_dict(document)
    operations: list[Any] = [result.ok() for result in schema.get_all_operations()]
    unsaid = getattr(checks, "positive_data_acceptance")  # noqa: B009 -- generic without arguments
    rejection = getattr(checks, "negative_data_rejection")  # noqa: B009 -- as above
    modes = [mode for mode in schemathesis.GenerationMode if mode not in without]
    most = cases // (len(modes) * len(operations)) + 1
    tried = 0
    for operation in operations:
        for mode in modes:

            @settings(
                max_examples=most,
                deadline=None,
                database=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def answered(case: Any) -> None:
                nonlocal tried
                tried += 1
                response = case.call(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=20)
                # The check of bad requests does not know 413, which it is if such a one is too large besides, and
                # takes a list for sent of which the address has nothing, or one value like any other.
                given = cast("dict[str, Any]", case.query or {}).values()
                listed = any(isinstance(each, list) and len(cast("list[Any]", each)) < 2 for each in given)
                excused = response.status_code == 413 or listed
                case.validate_response(response, excluded_checks=[unsaid, *([rejection] if excused else [])])

            answered()
    return tried
