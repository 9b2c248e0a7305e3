/** A template's variables as text, one NAME=value per line, and back. */

/** The variables as text. A value of several lines, or that begins with a quote, is quoted. */
export const environmentText = (env) =>
  Object.entries(env)
    .map(([name, value]) => `${name}=${/[\n\r]|^"/.test(value) ? JSON.stringify(value) : value}`)
    .join("\n");

/** `wrong`: the first line that is no NAME=value, or names one again; null if there is none. */
export function parsedEnvironment(text) {
  const env = new Map();
  for (const line of text.split("\n").filter((some) => some.trim())) {
    const [, name, value] = /^\s*([^=\s]+)\s*=(.*)$/.exec(line) ?? [];
    const plain = name && !env.has(name) ? unquoted(value) : null;
    if (plain === null) return { env: {}, wrong: line.trim() };
    env.set(name, plain);
  }
  return { env: Object.fromEntries(env), wrong: null };
}

function unquoted(value) {
  if (!value.startsWith('"')) return value;
  try {
    return JSON.parse(value);
  } catch {
    return null;
  }
}
