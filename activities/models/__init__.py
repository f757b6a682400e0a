"""Models: the adapters of `schema.ports.Model`, and the router that picks one by model id."""

from activities.models.access import ModelAccess
from activities.models.provider import LitellmModel
from activities.models.router import ModelRouter
from activities.models.script import Script, ScriptAttempts, ScriptCall, ScriptError, ScriptLine, ScriptSteps
from activities.models.script_files import BUILTIN_SCRIPTS, load_scripts
from activities.models.scripted import ScriptedModel

__all__ = [
    "BUILTIN_SCRIPTS",
    "LitellmModel",
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
