"""Errors a user can act on: each message is one sentence with the value received and what would be right."""


class VvsError(Exception):
    """Base of every error that the command line shows as a sentence instead of a traceback."""


class SettingsError(VvsError, ValueError):
    """A setting that cannot work: names the setting, the value received and what would be right."""


class PromptError(VvsError, ValueError):
    """A prompt the model cannot take: of the wrong kind, too long, or with words it does not know."""


class BundleError(VvsError):
    """A bundle that is missing, damaged, of another schema, or does not fit together."""


class EngineError(BundleError):
    """A built engine that is missing, damaged, stale, foreign, or does not fit its bundle or its partner."""


class CheckpointError(VvsError):
    """A checkpoint whose keys or shapes are not those of the model it is loaded into."""


class ExportError(VvsError):
    """An export that cannot be done, or whose graphs differ from the eager module beyond tolerance."""


class BackendError(VvsError):
    """A backend that is unknown, not installed, or cannot run on this machine."""


class CancelledError(VvsError):
    """A generation that the caller cancelled."""
