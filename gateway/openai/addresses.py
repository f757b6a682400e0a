"""Every endpoint below `/openai/v1`. The router is made of this; `/v1/openapi.json` has none of them."""

from turnstile.gateway.http.endpoints import Endpoint
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.openai.chat import Chat
from turnstile.gateway.openai.chat_answer import ChatCompletion
from turnstile.gateway.openai.chat_request import ChatCreate
from turnstile.gateway.openai.models import ModelEntry, ModelList, Models
from turnstile.gateway.openai.responses.objects import ItemList, Response
from turnstile.gateway.openai.responses.request import ItemsQuery, ResponseCreate, ResponseRetrieve
from turnstile.gateway.openai.responses.response_handlers import Responses
from turnstile.schema.access import Right

__all__ = ["Kernel", "openai_endpoints"]


def openai_endpoints(kernel: Kernel) -> list[Endpoint]:
    """All of them."""
    return [*_models(Models(kernel.pool)), *_chat(Chat(kernel)), *_responses(Responses(kernel))]


def _models(models: Models) -> list[Endpoint]:
    return [
        Endpoint(
            name="openai_list_models",
            method="GET",
            path="/openai/v1/models",
            right=Right.READ,
            summary="The agents, and the profiles with instances, as models.",
            handler=models.list,
            answer=ModelList,
        ),
        Endpoint(
            name="openai_get_model",
            method="GET",
            path="/openai/v1/models/{model:path}",
            right=Right.READ,
            summary="One of them.",
            handler=models.get,
            answer=ModelEntry,
        ),
    ]


def _chat(chat: Chat) -> list[Endpoint]:
    return [
        Endpoint(
            name="openai_create_chat_completion",
            method="POST",
            path="/openai/v1/chat/completions",
            right=Right.ASK,
            summary="Run a turn on these messages.",
            handler=chat.create,
            body=ChatCreate,
            answer=ChatCompletion,
            request_headers={"Idempotency-Key": "The caller's own name for the request."},
        )
    ]


def _responses(responses: Responses) -> list[Endpoint]:
    return [
        Endpoint(
            name="openai_create_response",
            method="POST",
            path="/openai/v1/responses",
            right=Right.ASK,
            summary="Make a response: a turn. The same Idempotency-Key with the same body is the same response.",
            handler=responses.create,
            body=ResponseCreate,
            answer=Response,
            request_headers={"Idempotency-Key": "The caller's own name for the request."},
        ),
        Endpoint(
            name="openai_get_response",
            method="GET",
            path="/openai/v1/responses/{response_id}",
            right=Right.READ,
            summary="A response, or its stream, from its begin or after a sequence number.",
            handler=responses.get,
            query=ResponseRetrieve,
            answer=Response,
        ),
        Endpoint(
            name="openai_list_input_items",
            method="GET",
            path="/openai/v1/responses/{response_id}/input_items",
            right=Right.READ,
            summary="What a response's turn had read before it began.",
            handler=responses.input_items,
            query=ItemsQuery,
            answer=ItemList,
        ),
        Endpoint(
            name="openai_cancel_response",
            method="POST",
            path="/openai/v1/responses/{response_id}/cancel",
            right=Right.ASK,
            summary="Stop a response.",
            handler=responses.cancel,
            answer=Response,
        ),
    ]
