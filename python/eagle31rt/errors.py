"""Exceptions of eagle31rt. Each derives from the built-in class that fits, so `except ValueError` works."""


class Eagle31rtError(Exception):
    """Base of every error that the runtime raises."""


class InvalidArgumentError(Eagle31rtError, ValueError):
    """A parameter, prompt or request is wrong; the message names it and says what to give."""


class CheckpointError(Eagle31rtError, ValueError):
    """A checkpoint or its config is broken, or does not match the target."""


class UnsupportedError(Eagle31rtError, NotImplementedError):
    """Valid, but this version cannot do it; nothing is dropped silently."""


class ResourceError(Eagle31rtError, RuntimeError):
    """Memory, KV pages or threads could not be had."""


class DeviceError(Eagle31rtError, RuntimeError):
    """An accelerator is missing, too old or failed; the message says what is needed."""


class InternalError(Eagle31rtError, RuntimeError):
    """A broken invariant of the runtime; please report it."""
