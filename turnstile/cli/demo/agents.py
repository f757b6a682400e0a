"""The two agents of `turnstile demo-pump`: a waiter who asks a taster, and orders at the bakery's counter."""

from turnstile.schema.ids import AgentId
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.pump.listeners import Listener
from turnstile.schema.pump.payloads import Payload


class Wish(Payload):
    """What a guest would like, in words."""

    text: str


class Dish(Payload):
    """What is eaten with the bread."""

    name: str


waiter = Listener(
    name="waiter",
    payload=Wish,
    description="Finds the right bread for a guest.",
    agent_id=AgentId("waiter"),
    agent=True,
    peers=("taster", "counter"),
)
taster = Listener(
    name="taster",
    payload=Dish,
    description="Knows which bread goes with a dish.",
    agent_id=AgentId("taster"),
    agent=True,
)


def agent_profiles() -> tuple[Profile, Profile]:
    """Their profiles; an id of LiteLLM in place of the scripted models asks real ones."""
    return (
        Profile(
            name="waiter",
            tags=["demo"],
            system_prompt_template="You are {agent_id}. Ask the taster, order at the counter, then tell the guest.",
            max_steps=4,
            llm_config=LlmConfig(model="scripted/waiter"),
        ),
        Profile(
            name="taster",
            tags=["demo"],
            system_prompt_template="You are {agent_id}. Name the bread for the dish, and why, in a sentence.",
            max_steps=4,
            llm_config=LlmConfig(model="scripted/taster"),
        ),
    )
