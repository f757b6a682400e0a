"""What callers say, checked before it is sent: the bridge would refuse the same."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest

Request = TypeVar("Request", bound=BaseModel)


def parse_request(form: type[Request], given: JsonObject) -> Request:
    """The request; raises `BadRequest` naming each field that is wrong."""
    try:
        return form.model_validate(given)
    except ValidationError as error:
        faults = [f"{each['loc'][0]}: {each['msg']}" for each in error.errors(include_url=False, include_input=False)]
        raise BadRequest("; ".join(faults)) from None
