// JSON with comments and trailing commas, as devcontainer.json is written. What is no JSON is blanked out in place, so that
// the line and column of an error are those of the file. One pass: a hostile file takes no longer than another.

function parse(text) {
  return JSON.parse(plain(text.replace(/^\uFEFF/, " ")));
}

function plain(text) {
  const parts = [];
  let comma = -1; // the part that is a comma after a value, with nothing but blanks behind it
  let last = "[";
  for (let at = 0; at < text.length; ) {
    const end = endOfToken(text, at);
    const token = text.slice(at, end);
    const isBlank = /^(?:\s|\/[/*])/.test(token);
    if (comma !== -1 && (token === "]" || token === "}")) parts[comma] = " ";
    if (!isBlank) {
      comma = token === "," && !"[{:,".includes(last) ? parts.length : -1;
      last = token;
    }
    parts.push(isBlank ? token.replace(/\S/g, " ") : token);
    at = end;
  }
  return parts.join("");
}

function endOfToken(text, at) {
  if (text[at] === '"') return endOfString(text, at + 1);
  if (text.startsWith("//", at)) return found(text.indexOf("\n", at), text);
  if (text.startsWith("/*", at)) return found(text.indexOf("*/", at + 2) + 2, text, 2);
  return at + 1;
}

function endOfString(text, from) {
  let at = from;
  while (at < text.length && text[at] !== '"' && text[at] !== "\n") at += text[at] === "\\" ? 2 : 1;
  return Math.min(at + 1, text.length);
}

const found = (at, text, least = 0) => (at < least ? text.length : at);

module.exports = { parse };
