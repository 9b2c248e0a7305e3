/** Addresses of repositories: whether two mean the same one, what to call it, and the link and badge for a README. */

const LONGEST = 1000; // as the API has it

/** Anybody may have written the address into a link. */
const isAddress = (url) => url.length <= LONGEST && !/[\u0000-\u001f\u007f]/.test(url);

function withoutSlashes(path) {
  let end = path.length;
  while (path[end - 1] === "/") end -= 1;
  return path.slice(0, end);
}

/** The same for https://host/team/shop, https://HOST/team/shop.git/ and git@host:team/shop. */
export function repositoryKey(url) {
  const trimmed = url.trim();
  if (!isAddress(trimmed)) return url;
  const found = /^(?:\w+:\/\/)?(?:[^/@]*@)?([^/:]+)(?::\d+(?=\/))?[/:]+(.*)$/.exec(trimmed);
  return found ? `${found[1].toLowerCase()}/${withoutSlashes(found[2]).replace(/\.git$/, "")}` : url;
}

export function repositoryName(url) {
  if (!isAddress(url.trim())) return "";
  return repositoryKey(url).split("/").pop().replace(/^\.+/, "").slice(0, 100);
}

/** @param {string} origin of the dashboard */
export function newLink(origin, url, ref) {
  const query = new URLSearchParams({ git: url, ...(ref ? { ref } : {}) });
  return `${origin}/new?${query}`;
}

export function badge(origin, url, ref) {
  return `[![Open in CodeHub](${origin}/badge.svg)](${newLink(origin, url, ref)})`;
}
