"""What asyncpg raises, as the domain's errors: no answer is Unreachable, and then the truth is unknown.

A refused commit and a lost connection look alike from here: an effect behind Unreachable may have happened.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from codehub.domain.errors import BackendError, CodeHubError, Conflict, Unreachable

NO_ANSWER = (
    OSError,  # refused, reset, no such socket; TimeoutError is one too
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,  # the connection or the pool is closed
    asyncpg.InternalClientError,  # asyncpg's word for a connection that broke in the middle of an answer
    asyncpg.InsufficientResourcesError,  # too many connections, disk full
    asyncpg.OperatorInterventionError,  # shutdown, statement timeout, terminated by an administrator
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.TransactionRollbackError,  # deadlock, serialization
    asyncpg.LockNotAvailableError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby after a failover
)
_MOST = 200

_CONFLICTS = {
    "workspaces_name": ("You already have a workspace of that name.", "name_taken"),
    "workspaces_slug": ("That address is taken.", "slug_taken"),
    "workspaces_pkey": ("There is a workspace of that id already.", "id_taken"),
    "users_pkey": ("There is a user of that id already.", "id_taken"),
    "users_username": ("That username is taken.", "username_taken"),
    "users_identity": ("Somebody else signs in with that identity.", "identity_taken"),
}


@contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except CodeHubError:
        raise
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name not in _CONFLICTS:
            raise BackendError(_sentence("PostgreSQL refused a double row", error)) from error
        raise Conflict(*_CONFLICTS[error.constraint_name]) from error
    except NO_ANSWER as error:
        raise unreachable(error) from error
    except asyncpg.PostgresError as error:
        raise BackendError(_sentence("PostgreSQL refused", error)) from error


def unreachable(error: BaseException) -> Unreachable:
    return Unreachable(_sentence("PostgreSQL does not answer", error))


def _sentence(what: str, error: BaseException) -> str:
    # Not str(error): that shows the values of the row too.
    system = error.strerror if isinstance(error, OSError) else None
    text = system or (str(error.args[0]) if error.args else "")
    detail = " ".join(text.split()) or type(error).__name__
    return f"{what}: {detail[:_MOST]}"
