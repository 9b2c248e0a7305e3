// Joins the other ports of this workspace that the pages of this one use: each answer sets a cookie that only pages
// within this site send along. Then on to where the person wanted to go, whatever came of it.

const page = document.getElementById("ports");
const joins = JSON.parse(page.dataset.joins);
const asked = { mode: "cors", credentials: "include", cache: "no-store", signal: AbortSignal.timeout(5_000) };

await Promise.allSettled(joins.map((address) => fetch(address, asked)));
location.replace(page.dataset.to);
