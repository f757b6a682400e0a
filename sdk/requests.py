"""What callers say, checked before it is sent: the bridge would refuse the same."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest

Request = TypeVar("Request", bound=BaseModel)


def parse_request(form: type[Request], given: JsonObject) -> Request:
    """The request; raises `BadRequest` naming each field that is wrong."""
    try:
        return form.model_validate(given)
    except ValidationError as error:
        raise BadRequest("; ".join(map(_fault, error.errors(include_url=False, include_input=False)))) from None


def _fault(error: ErrorDetails) -> str:
    """What is wrong, and with which field; what is wrong with the whole names its fields itself."""
    message = error["msg"].removeprefix("Value error, ")
    return f"{error['loc'][0]}: {message}" if error["loc"] else message
