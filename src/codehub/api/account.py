"""Routes for what people keep for their workspaces: secrets, git credentials, their git identity and their dotfiles;
and the SSH keys with which they reach them.

No answer ever holds a secret's value. What is put takes a session that has just proved who it is, as tokens do: a token
gets `needs_session`, another session `proof_needed`. It reaches a workspace at its next start.
"""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path
from pydantic import AfterValidator
from starlette.responses import Response

from codehub.api.dependencies import SIGNED, WITH_BODY, ApiParts, Parts, Signed, problems
from codehub.api.schemas import (
    DotfilesChange,
    DotfilesShown,
    GitCredentialList,
    GitCredentialShown,
    GitIdentityChange,
    GitIdentityShown,
    GitTokenPut,
    SecretItem,
    SecretList,
    SecretPut,
    SshKeyAdd,
    SshKeyList,
    SshKeyShown,
    storable,
)
from codehub.domain.authorized_keys import AuthorizedKey
from codehub.domain.secrets import SecretKind
from codehub.ports.secrets import SecretShown
from codehub.usecases.secrets import GIT_CREDENTIALS, VARIABLES

router = APIRouter(prefix="/account", tags=["account"])

VariableName = Annotated[str, Path(min_length=1, max_length=200, examples=["NPM_TOKEN"]), AfterValidator(storable)]
Host = Annotated[str, Path(min_length=1, max_length=300, examples=["git.example.com"]), AfterValidator(storable)]


def secret_item(parts: ApiParts, shown: SecretShown) -> SecretItem:
    return SecretItem(name=shown.name.name, updated_at=shown.updated_at, is_readable=parts.secrets.is_readable(shown))


def _credential(parts: ApiParts, shown: SecretShown) -> GitCredentialShown:
    is_token = shown.name.kind is SecretKind.GIT_TOKEN
    return GitCredentialShown(
        host=shown.name.name,
        kind="token" if is_token else "ssh_key",
        username=shown.public if is_token else None,
        public_key=None if is_token else shown.public,
        updated_at=shown.updated_at,
        is_readable=parts.secrets.is_readable(shown),
    )


@router.get("/secrets", operation_id="listSecrets", responses=problems(*SIGNED))
async def list_secrets(parts: Parts, caller: Signed) -> SecretList:
    """The names of your secrets, which are environment variables in your workspaces. Their values are shown nowhere."""
    found = await parts.secrets.list_own(caller, VARIABLES)
    return SecretList(items=[secret_item(parts, one) for one in found])


@router.put("/secrets/{name}", operation_id="putSecret", responses=problems(*WITH_BODY, 404, 409, 429))
async def put_secret(parts: Parts, caller: Signed, name: VariableName, body: SecretPut) -> SecretItem:
    """Made or replaced."""
    return secret_item(parts, await parts.secrets.put_variable(caller, name, body.value.get_secret_value()))


@router.delete("/secrets/{name}", operation_id="deleteSecret", status_code=204, responses=problems(*SIGNED, 404, 422))
async def delete_secret(parts: Parts, caller: Signed, name: VariableName) -> Response:
    await parts.secrets.delete_variable(caller, name)
    return Response(status_code=204)


@router.get("/git-credentials", operation_id="listGitCredentials", responses=problems(*SIGNED))
async def list_git_credentials(parts: Parts, caller: Signed) -> GitCredentialList:
    """With which credentials git signs in at which host. A host may have a token, for https, and an SSH key."""
    found = await parts.secrets.list_own(caller, GIT_CREDENTIALS)
    return GitCredentialList(items=[_credential(parts, one) for one in found])


@router.put("/git-credentials/{host}/token", operation_id="putGitToken", responses=problems(*WITH_BODY, 404, 409, 429))
async def put_git_token(parts: Parts, caller: Signed, host: Host, body: GitTokenPut) -> GitCredentialShown:
    """Made or replaced. The host may have a port: `git.example.com:8443`."""
    shown = await parts.secrets.put_git_token(caller, host, body.username, body.token.get_secret_value())
    return _credential(parts, shown)


@router.delete(
    "/git-credentials/{host}/token",
    operation_id="deleteGitToken",
    status_code=204,
    responses=problems(*SIGNED, 404, 422),
)
async def delete_git_token(parts: Parts, caller: Signed, host: Host) -> Response:
    await parts.secrets.delete_git_credential(caller, SecretKind.GIT_TOKEN, host)
    return Response(status_code=204)


@router.post(
    "/git-credentials/{host}/ssh-key",
    operation_id="makeGitSshKey",
    status_code=201,
    responses=problems(*SIGNED, 404, 409, 422, 429),
)
async def make_git_ssh_key(parts: Parts, caller: Signed, host: Host) -> GitCredentialShown:
    """A new Ed25519 key pair; it replaces one that is there. Give `public_key` to the git server."""
    return _credential(parts, await parts.secrets.make_git_ssh_key(caller, host))


@router.delete(
    "/git-credentials/{host}/ssh-key",
    operation_id="deleteGitSshKey",
    status_code=204,
    responses=problems(*SIGNED, 404, 422),
)
async def delete_git_ssh_key(parts: Parts, caller: Signed, host: Host) -> Response:
    await parts.secrets.delete_git_credential(caller, SecretKind.SSH_KEY, host)
    return Response(status_code=204)


def _ssh_key(one: AuthorizedKey) -> SshKeyShown:
    return SshKeyShown(
        id=one.id,
        name=one.name,
        algorithm=one.key.algorithm,
        fingerprint=one.key.fingerprint,
        comment=one.key.comment,
        created_at=one.created_at,
        last_used_at=one.last_used_at,
    )


@router.get("/ssh-keys", operation_id="listSshKeys", responses=problems(*SIGNED))
async def list_ssh_keys(parts: Parts, caller: Signed) -> SshKeyList:
    """The public keys with which you reach your workspaces over SSH, newest first."""
    return SshKeyList(items=[_ssh_key(one) for one in await parts.ssh_keys.list(caller)])


@router.post("/ssh-keys", operation_id="addSshKey", status_code=201, responses=problems(*WITH_BODY, 404, 409, 429))
async def add_ssh_key(parts: Parts, caller: Signed, body: SshKeyAdd) -> SshKeyShown:
    """Accepted are Ed25519, ECDSA, RSA of 3072 bits or more, and those of security keys. A key belongs to one account:
    one that is registered gets `ssh_key_taken`."""
    return _ssh_key(await parts.ssh_keys.add(caller, body.public_key, body.name))


@router.delete(
    "/ssh-keys/{key_id}", operation_id="removeSshKey", status_code=204, responses=problems(*SIGNED, 404, 422)
)
async def remove_ssh_key(parts: Parts, caller: Signed, key_id: UUID) -> Response:
    """Connections that were opened with it end."""
    await parts.ssh_keys.remove(caller, key_id)
    return Response(status_code=204)


@router.get("/git-identity", operation_id="showGitIdentity", responses=problems(*SIGNED))
async def show_git_identity(parts: Parts, caller: Signed) -> GitIdentityShown:
    """Who your commits are by; null if you have not said so."""
    found = (await parts.secrets.profile(caller)).git_identity
    return GitIdentityShown(name=found.name, email=found.email) if found else GitIdentityShown(name=None, email=None)


@router.put("/git-identity", operation_id="putGitIdentity", responses=problems(*WITH_BODY, 404))
async def put_git_identity(parts: Parts, caller: Signed, body: GitIdentityChange) -> GitIdentityShown:
    identity = await parts.secrets.set_git_identity(caller, body.name, body.email)
    return GitIdentityShown(name=identity.name, email=identity.email)


@router.delete("/git-identity", operation_id="deleteGitIdentity", status_code=204, responses=problems(*SIGNED, 404))
async def delete_git_identity(parts: Parts, caller: Signed) -> Response:
    await parts.secrets.remove_git_identity(caller)
    return Response(status_code=204)


@router.get("/dotfiles", operation_id="showDotfiles", responses=problems(*SIGNED))
async def show_dotfiles(parts: Parts, caller: Signed) -> DotfilesShown:
    """The repository of your configuration, and the command that installs it; null if there is none."""
    found = (await parts.secrets.profile(caller)).dotfiles
    return (
        DotfilesShown(url=found.url, command=found.command or None) if found else DotfilesShown(url=None, command=None)
    )


@router.put("/dotfiles", operation_id="putDotfiles", responses=problems(*WITH_BODY, 404, 409))
async def put_dotfiles(parts: Parts, caller: Signed, body: DotfilesChange) -> DotfilesShown:
    dotfiles = await parts.secrets.set_dotfiles(caller, body.url, body.command or "")
    return DotfilesShown(url=dotfiles.url, command=dotfiles.command or None)


@router.delete("/dotfiles", operation_id="deleteDotfiles", status_code=204, responses=problems(*SIGNED, 404))
async def delete_dotfiles(parts: Parts, caller: Signed) -> Response:
    await parts.secrets.remove_dotfiles(caller)
    return Response(status_code=204)
