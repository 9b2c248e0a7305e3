"""What a person's client says when it cannot do what was asked: one sentence, and an exit code."""

from codehub.cli.exits import FAILED


class ClientFailed(Exception):
    """Ends the command with its message; `code` is the exit code, `problem` the API's own code, if it said one."""

    def __init__(self, message: str, code: int = FAILED, problem: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.problem = problem
