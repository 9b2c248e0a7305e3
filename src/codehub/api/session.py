"""Routes for signing in and out, here or at an OpenID provider, and for one's own sessions and password."""

from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import RedirectResponse, Response

from codehub.api.dependencies import SIGNED, WITH_BODY, Parts, Reader, Signed, address_of, problems, refuse_cross_site
from codehub.api.rendering import json_response, timestamp, user_json
from codehub.api.schemas import BrowserSession, PasswordChange, Proof, SessionList, SessionShown, SignIn
from codehub.domain.credentials import SESSION_COOKIE
from codehub.domain.errors import NotFound
from codehub.domain.identity import Caller
from codehub.usecases.oidc import LIFETIME_SECONDS, Oidc

router = APIRouter(tags=["session"])

_PROVIDER_COOKIE: Final = f"{SESSION_COOKIE}-oidc"
_REDIRECT: Final[dict[int | str, dict[str, Any]]] = {303: {"description": "On the way; `Location` says where to."}}


@router.post(
    "/session",
    operation_id="signIn",
    status_code=201,
    response_model=SessionShown,
    responses=problems(400, 401, 403, 422, 429),
)
async def sign_in(request: Request, parts: Parts, body: SignIn) -> Response:
    """Sets the session's cookie. A new session every time, whatever the browser brought along."""
    refuse_cross_site(request, parts, must_name_origin=False)
    agent = request.headers.get("user-agent", "")
    caller, secret = await parts.identity.sign_in(body.username, body.password, address_of(request), agent)
    shown = json_response(_shown(caller), 201)
    _set_cookie(shown, parts, secret)
    return shown


@router.get("/session", operation_id="showSession", response_model=SessionShown, responses=problems(*SIGNED))
async def show_session(caller: Signed) -> Response:
    return json_response(_shown(caller))


@router.delete("/session", operation_id="signOut", status_code=204, responses=problems(*SIGNED, 409))
async def sign_out(parts: Parts, caller: Signed) -> Response:
    await parts.identity.sign_out(caller)
    gone = Response(status_code=204)
    gone.delete_cookie(SESSION_COOKIE, path="/", secure=True, httponly=True, samesite="lax")
    return gone


@router.put(
    "/session/password", operation_id="changePassword", status_code=204, responses=problems(*WITH_BODY, 409, 429)
)
async def change_password(parts: Parts, caller: Signed, body: PasswordChange) -> Response:
    """One's own. This session stays; all others end, and with `revoke_tokens` all personal tokens."""
    await parts.identity.change_password(caller, body.old_password, body.new_password, revoke_tokens=body.revoke_tokens)
    return Response(status_code=204)


@router.post("/session/proof", operation_id="proveSession", status_code=204, responses=problems(*WITH_BODY, 409, 429))
async def prove_session(parts: Parts, caller: Signed, body: Proof) -> Response:
    """That it is still you, by your password: what answers `proof_needed` may then be asked for, for a while. People of
    an OpenID provider go to `/session/oidc?anew=true` instead."""
    await parts.identity.prove(caller, body.password)
    return Response(status_code=204)


@router.get("/sessions", operation_id="listSessions", responses=problems(*SIGNED))
async def list_sessions(parts: Parts, caller: Reader) -> SessionList:
    found = await parts.identity.sessions(caller)
    shown = ({**asdict(session), "current": session.id == caller.session_id} for session in found)
    return SessionList(items=[BrowserSession.model_validate(session) for session in shown])


@router.delete(
    "/sessions/{session_id}", operation_id="endSession", status_code=204, responses=problems(*SIGNED, 404, 422)
)
async def end_session(
    parts: Parts, caller: Signed, session_id: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
) -> Response:
    await parts.identity.revoke_session(caller, session_id)
    return Response(status_code=204)


@router.get(
    "/session/oidc",
    operation_id="beginProviderSignIn",
    status_code=303,
    responses={**_REDIRECT, **problems(404, 422)},
)
async def begin_provider_sign_in(
    parts: Parts, to: Annotated[str | None, Query(alias="next", max_length=2_000)] = None, *, anew: bool = False
) -> Response:
    """To the OpenID provider, for a browser; `next` is a local path to come back to. `anew`: who is signed in proves
    once more who they are, and keeps the session."""
    url, secret = await _provider(parts).start(to, anew=anew)
    away = RedirectResponse(url, 303)
    away.set_cookie(_PROVIDER_COOKIE, secret, LIFETIME_SECONDS, path="/", secure=True, httponly=True, samesite="lax")
    return away


@router.get(
    "/session/oidc/callback",
    operation_id="finishProviderSignIn",
    status_code=303,
    responses={**_REDIRECT, **problems(401, 404, 409)},
)
async def finish_provider_sign_in(request: Request, parts: Parts) -> Response:
    """Where the provider sends the browser back to."""
    signed_in = await _provider(parts).finish(
        dict(request.query_params),
        request.cookies.get(_PROVIDER_COOKIE),
        address_of(request),
        request.headers.get("user-agent", ""),
        request.cookies.get(SESSION_COOKIE),
    )
    home = RedirectResponse(signed_in.next_path, 303)
    home.delete_cookie(_PROVIDER_COOKIE, path="/", secure=True, httponly=True, samesite="lax")
    _set_cookie(home, parts, signed_in.session_token)
    return home


def _provider(parts: Parts) -> Oidc:
    if parts.oidc is None:
        raise NotFound("This installation has no OpenID provider.")
    return parts.oidc


def _set_cookie(response: Response, parts: Parts, secret: str) -> None:
    seconds = int(parts.identity.rules.absolute_seconds)
    response.set_cookie(SESSION_COOKIE, secret, seconds, path="/", secure=True, httponly=True, samesite="lax")


def _shown(caller: Caller) -> dict[str, object]:
    return {
        "user": user_json(caller.user),
        "kind": "session" if caller.session_id else "token",
        "scopes": sorted(scope.value for scope in caller.scopes if caller.may(scope)),
        "expires_at": timestamp(caller.expires_at),
        "is_fresh": caller.is_fresh,
    }
