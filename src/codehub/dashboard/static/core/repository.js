/** Addresses of repositories: whether two mean the same one, what to call it, and the link and badge for a README. */

/** The same for https://host/team/shop, https://HOST/team/shop.git/ and git@host:team/shop. */
export function repositoryKey(url) {
  const found = /^(?:\w+:\/\/)?(?:[^/@]*@)?([^/:]+)(?::\d+(?=\/))?[/:]+(.*?)(?:\.git)?\/*$/.exec(url.trim());
  return found ? `${found[1].toLowerCase()}/${found[2]}` : url;
}

export function repositoryName(url) {
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
