"""The models of the demo project, as quick as tests want them."""

from lab.pictures.plays import at_pace
from turnstile.activities.models import Script

SCRIPTS: dict[str, Script] = at_pace(0.05)
