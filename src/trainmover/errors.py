"""The one root of every error that TrainMover raises on purpose.

Each message says what happened, to which rank or machine, at which step and epoch where that
is known, and what to do about it.  Subclasses are few: a caller distinguishes only what it
would handle differently.
"""

from __future__ import annotations


class TrainMoverError(Exception):
    """Root of all errors of this package."""


class ConfigError(TrainMoverError):
    """What the user asked for cannot be done as asked; nothing was started."""


class DecodeError(TrainMoverError):
    """Bytes from outside are not what the contract says; the sender is at fault."""


class BusError(TrainMoverError):
    """The message bus refused or did not answer within its limit."""


class LinkError(TrainMoverError, RuntimeError):
    """A link between two ranks could not be made, a peer broke its protocol, or a call cannot be made so.

    It is a RuntimeError too, because that is what torch's own back ends raise.
    """


class JobError(TrainMoverError):
    """The job as a whole cannot go on."""


class StateLost(JobError):
    """What a rank needs to go on exactly is on no machine any more; all ranks that are left find the same."""
