"""Every endpoint below `/openai/v1`. The router is made of this; `/v1/openapi.json` has none of them."""

from turnstile.gateway.http.endpoints import Endpoint
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.openai.chat import ChatCompletions
from turnstile.gateway.openai.chat_answer import ChatCompletion
from turnstile.gateway.openai.chat_request import ChatCreate
from turnstile.gateway.openai.conversations import (
    AnyItem,
    ConversationCreate,
    ConversationDeleted,
    ConversationObject,
    ConversationUpdate,
    ItemsCreate,
    ItemsInclude,
    OpenAIConversations,
)
from turnstile.gateway.openai.file_objects import FileDeleted, FileList, FileListQuery, FileObject, OpenAIFiles
from turnstile.gateway.openai.models import ModelEndpoints, ModelEntry, ModelList
from turnstile.gateway.openai.responses.objects import ItemList, Response
from turnstile.gateway.openai.responses.request import ItemsQuery, ResponseCreate, ResponseRetrieve
from turnstile.gateway.openai.responses.response_handlers import Responses
from turnstile.gateway.v1.file_handlers import Files
from turnstile.schema.access import Right

__all__ = ["Kernel", "openai_endpoints"]


def openai_endpoints(kernel: Kernel, files: Files) -> list[Endpoint]:
    """All of them."""
    return [
        *_models(ModelEndpoints(kernel.pool)),
        *_chat(ChatCompletions(kernel)),
        *_responses(Responses(kernel)),
        *_conversations(OpenAIConversations(kernel)),
        *_files(OpenAIFiles(files)),
    ]


def _models(models: ModelEndpoints) -> list[Endpoint]:
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


def _chat(chat: ChatCompletions) -> list[Endpoint]:
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
            summary="Create a response by running a turn. A repeated Idempotency-Key with the same body returns it.",
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
            summary="A response, or its stream from the beginning or after a sequence number.",
            handler=responses.get,
            query=ResponseRetrieve,
            answer=Response,
        ),
        Endpoint(
            name="openai_list_input_items",
            method="GET",
            path="/openai/v1/responses/{response_id}/input_items",
            right=Right.READ,
            summary="The input items of a response.",
            handler=responses.input_items,
            query=ItemsQuery,
            answer=ItemList,
        ),
        Endpoint(
            name="openai_cancel_response",
            method="POST",
            path="/openai/v1/responses/{response_id}/cancel",
            right=Right.ASK,
            summary="Cancel a response.",
            handler=responses.cancel,
            answer=Response,
        ),
    ]


def _conversations(conversations: OpenAIConversations) -> list[Endpoint]:
    one, items = "/openai/v1/conversations/{conversation_id}", "/openai/v1/conversations/{conversation_id}/items"
    key = {"Idempotency-Key": "The caller's own name for the request."}
    return [
        Endpoint(
            name="openai_create_conversation",
            method="POST",
            path="/openai/v1/conversations",
            right=Right.ASK,
            summary="Create a conversation. The same Idempotency-Key returns the same conversation.",
            handler=conversations.create,
            body=ConversationCreate,
            answer=ConversationObject,
            request_headers=key,
        ),
        Endpoint(
            name="openai_get_conversation",
            method="GET",
            path=one,
            right=Right.READ,
            summary="A conversation.",
            handler=conversations.get,
            answer=ConversationObject,
        ),
        Endpoint(
            name="openai_update_conversation",
            method="POST",
            path=one,
            right=Right.ASK,
            summary="Replace a conversation's metadata.",
            handler=conversations.update,
            body=ConversationUpdate,
            answer=ConversationObject,
        ),
        Endpoint(
            name="openai_delete_conversation",
            method="DELETE",
            path=one,
            right=Right.ASK,
            summary="Delete a conversation from lists; its items stay stored.",
            handler=conversations.delete,
            answer=ConversationDeleted,
        ),
        Endpoint(
            name="openai_list_conversation_items",
            method="GET",
            path=items,
            right=Right.READ,
            summary="The items of a conversation that its agent reads.",
            handler=conversations.items,
            query=ItemsQuery,
            answer=ItemList,
        ),
        Endpoint(
            name="openai_create_conversation_items",
            method="POST",
            path=items,
            right=Right.ASK,
            summary="Add items to a conversation. Repeating an Idempotency-Key adds nothing.",
            handler=conversations.add_items,
            query=ItemsInclude,
            body=ItemsCreate,
            answer=ItemList,
            request_headers=key,
        ),
        Endpoint(
            name="openai_get_conversation_item",
            method="GET",
            path=f"{items}/{{item_id}}",
            right=Right.READ,
            summary="An item of a conversation.",
            handler=conversations.item,
            query=ItemsInclude,
            answer=AnyItem,
        ),
        Endpoint(
            name="openai_delete_conversation_item",
            method="DELETE",
            path=f"{items}/{{item_id}}",
            right=Right.ASK,
            summary="Remove an item from a conversation.",
            handler=conversations.delete_item,
            answer=ConversationObject,
        ),
    ]


def _files(files: OpenAIFiles) -> list[Endpoint]:
    one = "/openai/v1/files/{artifact_id}"
    return [
        Endpoint(
            name="openai_create_file",
            method="POST",
            path="/openai/v1/files",
            right=Right.ASK,
            summary="Keep the file of a form. A repeated Idempotency-Key with the same bytes returns the same file.",
            handler=files.create,
            streamed=True,
            answer=FileObject,
        ),
        Endpoint(
            name="openai_list_files",
            method="GET",
            path="/openai/v1/files",
            right=Right.READ,
            summary="Files, newest first.",
            handler=files.list,
            query=FileListQuery,
            answer=FileList,
        ),
        Endpoint(
            name="openai_get_file",
            method="GET",
            path=one,
            right=Right.READ,
            summary="A file.",
            handler=files.get,
            answer=FileObject,
        ),
        Endpoint(
            name="openai_get_file_content",
            method="GET",
            path=f"{one}/content",
            right=Right.READ,
            summary="The bytes of a file.",
            handler=files.files.content,
            request_headers={"Range": "`bytes=FIRST-LAST`: one range of the bytes."},
        ),
        Endpoint(
            name="openai_delete_file",
            method="DELETE",
            path=one,
            right=Right.OPERATE,
            summary="Remove a file.",
            handler=files.delete,
            answer=FileDeleted,
        ),
    ]
