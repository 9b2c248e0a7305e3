// Where to go after signing in: a path of this very site, whatever somebody wrote into the link. The same rule as
// codehub.domain.addresses; a test holds the two together.

const MOST = 2000;
const SEGMENT = "[A-Za-z0-9\\-._~!$&'()*+,;=:@%]+";
const LOCAL = new RegExp(`^(/(?:${SEGMENT}(?:/${SEGMENT})*/?)?)(\\?[A-Za-z0-9\\-._~!$&'()*+,;=:@%/?]*)?$`);
const DISGUISED = /%(?:2f|5c|[01][0-9a-f]|7f)|%(?![0-9a-f]{2})|\/(?:\.|%2e){1,2}(?:\/|$)/i;
const BY_PATH = "/w/";

export function localPath(text) {
  const address = (text ?? "").slice(0, MOST + 1).split("#")[0];
  const found = LOCAL.exec(address);
  if (!found || address.length > MOST || DISGUISED.test(found[1])) return "/";
  return address;
}

export function platformPath(text) {
  const path = localPath(text);
  return `${path.split("?")[0]}/`.startsWith(BY_PATH) ? "/" : path;
}
