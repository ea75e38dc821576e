"""The one exception a user is meant to read."""

from __future__ import annotations

EXIT_OK = 0
EXIT_JUDGED_AGAINST = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """Bad input or an environment that does not fit: one line, exit code 2.

    Args:
        where: File, flag, tensor or component the finding belongs to.
        found: What was found there, with values.
        allowed: What would have been accepted.
        do: The next thing to type or change.
    """

    exit_code = EXIT_BAD_INPUT

    def __init__(self, where: str, *, found: str, allowed: str, do: str) -> None:
        self.where = where
        self.found = found
        self.allowed = allowed
        self.do = do
        super().__init__(f"{where}: found {found}; supported: {allowed}; do: {do}")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.where, self.found, self.allowed, self.do))


def _rebuild(kind: type[UserError], where: str, found: str, allowed: str, do: str) -> UserError:
    return kind(where, found=found, allowed=allowed, do=do)


class JudgedAgainst(Exception):
    """A judgement went against (a finding, a worse result, a plan that does not fit): exit 1."""

    exit_code = EXIT_JUDGED_AGAINST
