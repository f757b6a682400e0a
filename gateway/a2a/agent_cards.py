"""Agent cards: what A2A's clients are told of an agent, or of a profile with instances (protocol §17.3). Pure.

A card says what a token that reads may know anyway: names, tags, the tools that are offered, and nothing of the prompt.
"""

from typing import Any, Final
from urllib.parse import quote

from a2a.types import AgentCard
from google.protobuf.json_format import MessageToDict, ParseDict

from turnstile.gateway.addressed import Target
from turnstile.gateway.bounds import About
from turnstile.ledger.access.tasks import TargetDescription

VERSION: Final = "1.0"
BINDING: Final = "JSONRPC"
MODES: Final = ["text/plain", "application/json"]
_SCHEME: Final = "bearer"
_MOST_SKILLS: Final = 100


def address_of(base: str, named: str) -> str:
    """Where an agent is reached."""
    return f"{base}/a2a/{quote(named, safe=':')}"


def agent_card(description: TargetDescription, target: Target, about: About) -> dict[str, Any]:
    """The card as JSON."""
    text = description.description or f"The agent {description.name}, with the profile {description.profile_name}."
    skill = {
        "id": description.profile_name,
        "name": description.profile_name,
        "description": text,
        "tags": description.tags or ["agent"],
    }
    tools = [
        {
            "id": f"tool:{tool.name}",
            "name": tool.name,
            "description": tool.description or f"The tool {tool.name}.",
            "tags": ["tool"],
        }
        for tool in description.tools[:_MOST_SKILLS]
    ]
    card: dict[str, Any] = {
        "name": description.name,
        "description": text,
        "version": description.since.isoformat(),
        "supportedInterfaces": [
            {"url": address_of(about.url, target.named), "protocolBinding": BINDING, "protocolVersion": VERSION}
        ],
        "capabilities": {"streaming": True, "pushNotifications": True},
        "securitySchemes": {_SCHEME: {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "securityRequirements": [{"schemes": {_SCHEME: {"list": []}}}],
        "defaultInputModes": MODES,
        "defaultOutputModes": MODES,
        "skills": [skill, *tools],
    }
    if about.organization and about.organization_url:
        card["provider"] = {"organization": about.organization, "url": about.organization_url}
    return MessageToDict(ParseDict(card, AgentCard()))
