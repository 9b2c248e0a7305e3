/** What a workspace uses: a line in its card, and the charts of the last hour in its page. */

import { get } from "../core/api.js";
import { now } from "../core/clock.js";
import { element, replace, show } from "../core/element.js";
import { bytes, locale, t } from "../core/language.js";
import { lastHour, percent, percentText, usageTexts } from "../core/usage_text.js";
import { chart } from "./chart.js";
import { icon } from "./icons.js";
import { say } from "./toasts.js";

const HISTORY_MS = 30_000;

/** One line, and below it a warning for each thing that is about to become an error. */
export function usageLine(app) {
  const line = element("p", { class: "usage-line" });
  const warnings = element("div", { class: "usage-warnings" });
  const node = element("div", { class: "usage", hidden: true }, line, warnings);
  let warned = "";

  function update(ws) {
    const usage = app.usages.of(ws);
    show(node, usage !== null);
    if (usage === null) return;
    const texts = usageTexts(usage, { t, language: locale });
    if (texts.join(" · ") !== line.textContent) replace(line, texts.map((words, place) => [place ? " · " : null, element("span", {}, words)]));
    const codes = usage.warnings.map(({ code }) => code);
    if (codes.join() === warned) return;
    for (const code of codes.filter((one) => !warned.split(",").includes(one))) say(`${ws.name}: ${t(`usage.warning.${code}`)}`);
    warned = codes.join();
    replace(warnings, codes.map((code) => element("p", { class: "usage-warning" }, icon("warning"), element("span", {}, t(`usage.warning.${code}`)))));
  }

  return { node, update };
}

/** The panel of a workspace's page. It is there while the workspace runs, and for an hour after. */
export function usagePanel(app, first) {
  const live = usageLine(app);
  const charts = element("div", { class: "charts usage-charts" });
  const node = element("section", { class: "panel wide", hidden: true }, element("h2", {}, t("usage.title")), live.node, charts);
  let askedAt = -Infinity;
  let isKnown = false;

  async function draw() {
    askedAt = performance.now();
    const { items } = await get(`workspaces/${first.id}/usage`);
    isKnown = items.length > 0;
    const points = (value) => lastHour(items, value, now());
    const how = { shape: "line", none: t("usage.none") };
    replace(
      charts,
      chart({ ...how, title: t("usage.chart.cpu"), points: points(percent), say: (value) => percentText(value, locale) }),
      chart({ ...how, title: t("usage.chart.memory"), points: points((sample) => sample.memory_bytes), say: bytes }),
      chart({ ...how, title: t("usage.chart.disk"), points: points((sample) => sample.disk?.used_bytes ?? null), say: bytes }),
    );
  }

  function update(ws) {
    live.update(ws);
    show(node, ws.phase === "RUNNING" || isKnown);
  }

  function tick(ws) {
    app.usages.want([ws]);
    if (performance.now() - askedAt >= HISTORY_MS) draw().then(() => update(ws), () => null);
    update(ws);
  }

  return { node, update, tick };
}
