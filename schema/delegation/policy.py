"""Whom an agent may delegate to: `delegation_policy` of its profile (protocol §12)."""

from collections.abc import Iterable

from pydantic import Field, ValidationInfo, field_validator, model_validator

from turnstile.schema.base import STORED, Strict, known_fields

_NAMES_LIMIT = 1000


class DelegationPolicy(Strict):
    """The profiles whose agents a turn may ask, make or provision. A profile without a policy may none."""

    target_profiles: list[str] | None = Field(default=None, max_length=_NAMES_LIMIT)
    """Names of profiles; null allows all that pass the tags, an empty list none."""
    target_tags: list[str] = Field(default_factory=list, max_length=_NAMES_LIMIT)
    """A profile needs one of these tags; an empty list asks for none."""

    @model_validator(mode="before")
    @classmethod
    def _of_a_card(cls, value: object, info: ValidationInfo) -> object:
        return known_fields(value, cls.model_fields) if info.context == STORED else value

    @field_validator("target_tags", mode="before")
    @classmethod
    def _null_asks_for_none(cls, value: object) -> object:
        return [] if value is None else value

    @field_validator("target_profiles", "target_tags")
    @classmethod
    def _without_blanks(cls, value: list[str] | None) -> list[str] | None:
        return None if value is None else [tag.strip() for tag in value if tag.strip()]

    def allows(self, profile_name: str, tags: Iterable[str]) -> bool:
        """Whether the profile may be asked. Names are those of profiles, so their case does not matter."""
        named = self.target_profiles
        if named is not None and profile_name.lower() not in {n.lower() for n in named}:
            return False
        return not self.target_tags or not set(self.target_tags).isdisjoint(tags)
