"""The two agents of `turnstile demo-pump`: a waiter who asks a taster, and orders at the bakery's counter."""

from turnstile.schema.ids import AgentId
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.pump.listeners import Listener
from turnstile.schema.pump.payloads import Payload


class Wish(Payload):
    """A guest's wish as free text."""

    text: str


class Dish(Payload):
    """The dish that the bread is for."""

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
    """The agents' profiles; with a LiteLLM model id instead of the scripted models they call real models."""
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
