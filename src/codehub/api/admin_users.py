"""Accounts, for admins: create, disable, change role and limit, reset a password. Changes take a session whose admin
has just proved who they are: a token gets `needs_session`, another session `proof_needed`.
"""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path
from starlette.responses import Response

from codehub.api import pagination
from codehub.api.admin_schemas import CreatedUser, NewUser, UserChange
from codehub.api.dependencies import SIGNED, WITH_BODY, Admin, Cursor, Limit, Parts, problems
from codehub.api.rendering import json_response, user_json
from codehub.api.schemas import ANOTHER_ID, Page, User
from codehub.domain.errors import Invalid

router = APIRouter(prefix="/admin/users", tags=["admin"])

UserId = Annotated[UUID, Path(examples=[ANOTHER_ID])]


@router.get("", operation_id="listUsers", response_model=Page[User], responses=problems(*SIGNED, 422))
async def list_users(parts: Parts, caller: Admin, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """In the order of usernames."""
    after = None if cursor is None else pagination.decode_cursor("users", cursor)
    found, following = await parts.users.list(caller, after, limit)
    next_cursor = None if following is None else pagination.encode_cursor("users", following)
    return json_response({"items": [user_json(user) for user in found], "next_cursor": next_cursor})


@router.post(
    "", operation_id="createUser", status_code=201, response_model=CreatedUser, responses=problems(*WITH_BODY, 409)
)
async def create_user(parts: Parts, caller: Admin, body: NewUser) -> Response:
    """A password that we make is shown in this answer and never again."""
    user, password = await parts.users.create(caller, body.username, body.role, body.password, body.max_running)
    return json_response({**user_json(user), "password": password}, 201)


@router.get("/{user_id}", operation_id="showUser", response_model=User, responses=problems(*SIGNED, 404, 422))
async def show_user(parts: Parts, caller: Admin, user_id: UserId) -> Response:
    return json_response(user_json(await parts.users.get(caller, user_id)))


@router.patch(
    "/{user_id}", operation_id="changeUser", response_model=CreatedUser, responses=problems(*WITH_BODY, 404, 409)
)
async def change_user(parts: Parts, caller: Admin, user_id: UserId, body: UserChange) -> Response:
    """In this order: role, disabled, max_running, reset_password. There is always an admin left. A new password ends
    the person's sessions and revokes their tokens."""
    user = await parts.users.get(caller, user_id)
    sent: dict[str, Any] = {name: getattr(body, name) for name in body.model_fields_set}
    for name in ("role", "disabled"):
        if name in sent and sent[name] is None:
            raise Invalid("This cannot be null.", name)
    if body.role is not None:
        user = await parts.users.set_role(caller, user_id, body.role)
    if body.disabled is not None:
        act = parts.users.disable if body.disabled else parts.users.enable
        user = await act(caller, user_id)
    if "max_running" in sent:
        user = await parts.users.set_max_running(caller, user_id, body.max_running)
    password = await parts.users.reset_password(caller, user_id) if body.reset_password else None
    return json_response({**user_json(user), "password": password})
