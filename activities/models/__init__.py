"""Models: the adapters of `turnstile.runtime.ports.Model`, and the router that picks one by model id."""

from turnstile.activities.models.access import ModelAccess
from turnstile.activities.models.local import LocalModel
from turnstile.activities.models.provider import LitellmModel
from turnstile.activities.models.router import ModelRouter
from turnstile.activities.models.script import Script, ScriptAttempts, ScriptCall, ScriptError, ScriptLine, ScriptSteps
from turnstile.activities.models.script_files import BUILTIN_SCRIPTS, load_scripts
from turnstile.activities.models.scripted import ScriptedModel

__all__ = [
    "BUILTIN_SCRIPTS",
    "LitellmModel",
    "LocalModel",
    "ModelAccess",
    "ModelRouter",
    "Script",
    "ScriptAttempts",
    "ScriptCall",
    "ScriptError",
    "ScriptLine",
    "ScriptSteps",
    "ScriptedModel",
    "load_scripts",
]
