"""Every endpoint of `/v1`: the verbs' and those that only read. Router and OpenAPI document are made of this."""

from turnstile.gateway.http.endpoints import Endpoint
from turnstile.gateway.v1.conversation_handlers import Conversations
from turnstile.gateway.v1.event_handlers import Events
from turnstile.gateway.v1.file_handlers import Files
from turnstile.gateway.v1.roster_handlers import Roster
from turnstile.gateway.v1.turn_handlers import Turns
from turnstile.gateway.v1.verb_endpoints import VerbEndpoints
from turnstile.schema import api as r
from turnstile.schema.access import Right
from turnstile.schema.verbs import IDEMPOTENT, WAITING

_RESUME = "The id of the last event received: the stream continues after it. EventSource sends it automatically."
_RESUMED = {200: "The stream.", 204: "The stream has been read to its end."}


_DIGEST = "`sha-256=:BASE64:` of the body (RFC 9530): what differs is refused."
_RANGE = "`bytes=FIRST-LAST`: one range of the bytes."
_FILE = {200: "The bytes.", 206: "The bytes of the range.", 304: "They are those of If-None-Match."}


def endpoints(
    turns: Turns, conversations: Conversations, events: Events, verbs: VerbEndpoints, roster: Roster, files: Files
) -> list[Endpoint]:
    """All of them."""
    talk = [*_turns(turns, events), *_conversations(conversations, events), *_files(files)]
    return [*verbs.endpoints(), *talk, *_roster(roster)]


def _turns(turns: Turns, events: Events) -> list[Endpoint]:
    return [
        Endpoint(
            name="list_turns",
            method="GET",
            path="/v1/turns",
            right=Right.READ,
            summary="Turns, newest first.",
            handler=turns.list,
            query=r.TurnsQuery,
            answer=r.TurnPage,
        ),
        Endpoint(
            name="get_turn",
            method="GET",
            path="/v1/turns/{turn_id}",
            right=Right.READ,
            summary="A turn with its output.",
            handler=turns.get,
            answer=r.Turn,
            request_headers=WAITING,
        ),
        Endpoint(
            name="get_turn_tree",
            method="GET",
            path="/v1/turns/{turn_id}/tree",
            right=Right.READ,
            summary="The tree of turns that the turn belongs to.",
            handler=turns.tree,
            query=r.TreeQuery,
            answer=r.TurnTree,
        ),
        Endpoint(
            name="stream_turn",
            method="GET",
            path="/v1/turns/{turn_id}/events",
            right=Right.READ,
            summary="The events of a turn, from the beginning or after the last event received, to its outcome.",
            handler=events.turn,
            query=r.EventsQuery,
            statuses=_RESUMED,
            request_headers={"Last-Event-ID": _RESUME},
        ),
    ]


def _conversations(conversations: Conversations, events: Events) -> list[Endpoint]:
    return [
        Endpoint(
            name="list_conversations",
            method="GET",
            path="/v1/conversations",
            right=Right.READ,
            summary="Conversations, latest first.",
            handler=conversations.list,
            query=r.ConversationsQuery,
            answer=r.ConversationPage,
        ),
        Endpoint(
            name="get_conversation",
            method="GET",
            path="/v1/conversations/{conversation_id}",
            right=Right.READ,
            summary="A conversation.",
            handler=conversations.get,
            query=r.ChannelQuery,
            answer=r.Conversation,
        ),
        Endpoint(
            name="stream_conversation",
            method="GET",
            path="/v1/conversations/{conversation_id}/events",
            right=Right.READ,
            summary="The events of a conversation's turns, one turn after the other, including future turns.",
            handler=events.conversation,
            query=r.ConversationEventsQuery,
            statuses={200: "The stream."},
            request_headers={"Last-Event-ID": _RESUME},
        ),
    ]


def _files(files: Files) -> list[Endpoint]:
    return [
        Endpoint(
            name="create_artifact",
            method="POST",
            path="/v1/artifacts",
            right=Right.ASK,
            summary="Keep the body as a file. The same Idempotency-Key with the same bytes returns the same file.",
            handler=files.create,
            query=r.FileQuery,
            streamed=True,
            answer=r.FileView,
            statuses={201: "The file is kept.", 200: "An earlier request has made it."},
            request_headers=IDEMPOTENT | {"Content-Digest": _DIGEST},
        ),
        Endpoint(
            name="list_artifacts",
            method="GET",
            path="/v1/artifacts",
            right=Right.READ,
            summary="Files, newest first.",
            handler=files.list,
            query=r.FilesQuery,
            answer=r.FilePage,
        ),
        Endpoint(
            name="get_artifact",
            method="GET",
            path="/v1/artifacts/{artifact_id}",
            right=Right.READ,
            summary="A file: its name, kind, size and hash.",
            handler=files.get,
            answer=r.FileView,
        ),
        Endpoint(
            name="get_artifact_content",
            method="GET",
            path="/v1/artifacts/{artifact_id}/content",
            right=Right.READ,
            summary="The bytes of a file.",
            handler=files.content,
            statuses=_FILE,
            request_headers={"Range": _RANGE, "If-None-Match": "The ETag of bytes that the client has."},
        ),
    ]


def _roster(roster: Roster) -> list[Endpoint]:
    return [
        Endpoint(
            name="list_agents",
            method="GET",
            path="/v1/agents",
            right=Right.READ,
            summary="The project's agents by id.",
            handler=roster.agents,
            query=r.PageQuery,
            answer=r.AgentPage,
        ),
        Endpoint(
            name="list_profiles",
            method="GET",
            path="/v1/profiles",
            right=Right.READ,
            summary="The project's profiles by name.",
            handler=roster.profiles,
            query=r.PageQuery,
            answer=r.ProfilePage,
        ),
        Endpoint(
            name="list_tools",
            method="GET",
            path="/v1/tools",
            right=Right.READ,
            summary="The project's tools by name.",
            handler=roster.tools,
            query=r.PageQuery,
            answer=r.ToolPage,
        ),
        Endpoint(
            name="get_usage",
            method="GET",
            path="/v1/usage",
            right=Right.READ,
            summary="What the project's models used, by agent, model or day.",
            handler=roster.usage,
            query=r.UsageQuery,
            answer=r.Usage,
        ),
    ]
