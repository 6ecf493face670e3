"""Errors of other packages, told from those that a handler of a signal raises meanwhile."""

from __future__ import annotations

# The classes of which packages written in Rust raise errors of their own, in place of one that
# they define: a handler's class, such as TimeoutError, is not among them.
_PLAIN = (Exception, RuntimeError, TypeError, ValueError, OverflowError, UnicodeEncodeError)


def raised_in(error: BaseException, *packages: str) -> bool:
    """True for an error of native code that a module of Packhorse or of `packages` called.

    Python runs handlers of signals between any two of its steps, and what they raise passes through
    the call that they interrupt. Such an error began in a frame of the handler.
    """
    plain = type(error) in _PLAIN or type(error).__name__ == "PanicException"
    return plain and began_in(error, "packhorse", "packhorse_weights", *packages)


def began_in(error: BaseException, *packages: str) -> bool:
    """True where the innermost frame of an error is of one of these packages, or of a template."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return name.startswith("<") or name.partition(".")[0] in packages
