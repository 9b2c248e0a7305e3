"""Routes for personal tokens, which scripts and the command line use."""

from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from codehub.api.dependencies import SIGNED, WITH_BODY, Parts, Signed, problems
from codehub.api.schemas import CreatedToken, Token, TokenCreate, TokenList

router = APIRouter(tags=["tokens"])


@router.post(
    "/tokens",
    operation_id="createToken",
    status_code=201,
    responses=problems(*WITH_BODY, 409, 429),
)
async def create_token(parts: Parts, caller: Signed, body: TokenCreate) -> CreatedToken:
    """The secret is shown in this answer and never again. Only a session makes tokens, a token gets `needs_session`;
    and only soon after its person proved who they are, else it gets `proof_needed` (see `/session/proof`)."""
    made, secret = await parts.tokens.create(caller, body.name, body.scopes, body.expires_in_seconds)
    return CreatedToken(**Token.model_validate(made).model_dump(), token=secret)


@router.get("/tokens", operation_id="listTokens", responses=problems(*SIGNED))
async def list_tokens(parts: Parts, caller: Signed) -> TokenList:
    return TokenList(items=[Token.model_validate(token) for token in await parts.tokens.list(caller)])


@router.delete("/tokens/{token_id}", operation_id="revokeToken", status_code=204, responses=problems(*SIGNED, 404, 422))
async def revoke_token(parts: Parts, caller: Signed, token_id: UUID) -> Response:
    await parts.tokens.revoke(caller, token_id)
    return Response(status_code=204)
