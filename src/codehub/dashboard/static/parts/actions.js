/** What the buttons do: one command each, answered at once, with a way back where there is one. */

import { get, patch, post, remove } from "../core/api.js";
import { ACTIONS } from "../core/states.js";
import { allows } from "../core/workspace_state.js";
import { element } from "../core/element.js";
import { t } from "../core/language.js";
import { dialog } from "./dialog.js";
import { complain, toast } from "./toasts.js";

const SLOT_TRIES = 60;

export class Actions {
  #app;
  /** Workspaces that this very page has asked something of: their news need no toast. */
  #own = new Map();
  /** Creations that have not been answered: the event of a new one may come before the answer that names it. */
  #underWay = new Set();

  constructor(app) {
    this.#app = app;
  }

  note(id) {
    this.#own.set(id, Date.now());
  }

  /** @param {Promise<Object>} asked */
  async creating(asked) {
    this.#underWay.add(asked);
    try {
      const made = await asked;
      this.note(made.id);
      return made;
    } finally {
      this.#underWay.delete(asked);
    }
  }

  /** When everything that this page has asked to be made is known by its id. */
  async settled() {
    await Promise.allSettled(this.#underWay);
  }

  isOwn(id) {
    return Date.now() - (this.#own.get(id) ?? 0) < 10_000;
  }

  /** @param {string} name one of ACTIONS */
  async perform(name, ws) {
    this.note(ws.id);
    try {
      if (name === "open") return await this.#enter(ws);
      if (name === "undelete") return await this.#bringBack(ws);
      await this.#change(name, ws);
    } catch (problem) {
      if (problem.code === "limit_reached") await this.#makeRoom(name, ws);
      else complain(problem);
    }
  }

  async #change(name, ws) {
    const { desired } = ACTIONS[name];
    const path = `workspaces/${ws.id}`;
    this.#app.store.put(name === "delete" ? await remove(path) : await patch(path, { desired_state: desired }));
    const back = ws.desired_state;
    const actions = back === "DELETED" || name === "start" ? [] : [[t("undo"), () => this.undo(ws, back)]];
    toast(t(`done.${name}`, { name: ws.name }), { actions, key: `${ws.id}:change` });
  }

  /** Takes a delete back, also when it has gone through meanwhile: then the workspace is brought back. */
  async undo(ws, back) {
    this.note(ws.id);
    try {
      this.#app.store.put(await patch(`workspaces/${ws.id}`, { desired_state: back, discard_home: back === "PENDING" }));
      toast(t("done.undo", { name: ws.name }), { key: `${ws.id}:change` });
    } catch (problem) {
      if (problem.status === 404) await this.#bringBack(ws).catch(complain);
      else complain(problem);
    }
  }

  async #bringBack(ws) {
    await post(`workspaces/${ws.id}/undelete`);
    this.note(ws.id);
    toast(t("done.undelete", { name: ws.name }), { key: `${ws.id}:change` });
  }

  /** Opens a workspace. The click itself opens the tab, or browsers would not let it be opened at all. */
  async #enter(ws) {
    const tab = window.open("about:blank");
    if (tab) tab.opener = null;
    try {
      const { url } = await post(`workspaces/${ws.id}/ticket`);
      if (!/^https?:$/.test(new URL(url, location.href).protocol)) throw new Error("not an address");
      if (tab) tab.location.replace(url);
      else location.assign(url);
    } catch (problem) {
      tab?.close();
      throw problem;
    }
  }

  async keep(ws, seconds) {
    try {
      const lease = await post(`workspaces/${ws.id}/keepalive`, { seconds });
      this.#app.lifecycles.want(ws, { force: true });
      toast(seconds ? t("done.keep", { name: ws.name, time: this.#app.clock(lease.until) }) : t("done.let_go", { name: ws.name }));
    } catch (problem) {
      complain(problem);
    }
  }

  /** Asks, when there is no free slot, which of one's own workspaces may be stopped for this one. */
  async #makeRoom(name, ws) {
    const limits = await get("limits");
    await dialog(t("room.title"), (close) => [
      element("p", { class: "dialog-text" }, t(limits.holders.length ? "room.text" : "room.full", { count: limits.running, most: limits.max_running })),
      element(
        "ul",
        { class: "plain rows" },
        limits.holders.map((holder) =>
          element(
            "li",
            { class: "row" },
            element("span", { class: "row-main" }, element("strong", {}, holder.name), " ", element("span", { class: "muted" }, t(`phase.${holder.phase}`))),
            element(
              "button",
              { type: "button", class: "button small", on: { click: () => (close(), this.#swap(holder, name, ws)) } },
              t("room.swap"),
            ),
          ),
        ),
      ),
    ]);
  }

  async #swap(holder, name, ws) {
    const shown = toast(t("room.waiting", { old: holder.name, name: ws.name }), { lasts: null });
    try {
      this.note(holder.id);
      this.#app.store.put(await patch(`workspaces/${holder.id}`, { desired_state: "STANDBY" }));
      await this.#whenThereIsRoom(name, ws);
    } catch (problem) {
      complain(problem);
    } finally {
      shown.close();
    }
  }

  async #whenThereIsRoom(name, ws) {
    for (let tries = 1; ; tries += 1) {
      try {
        return await this.#change(name, ws);
      } catch (problem) {
        if (problem.code !== "limit_reached" || tries >= SLOT_TRIES) throw problem;
        await new Promise((go) => setTimeout(go, 1_000));
      }
    }
  }
}

/** The one thing most people want now. What comes up can be waited for at its own address; what goes down is called back. */
export function primary(ws) {
  if (ws.phase === "ERROR") return "recover";
  if (ws.phase === "DELETED") return "undelete";
  if (ws.desired_state === "RUNNING") return "open";
  const isLeaving = ws.desired_state !== ws.phase;
  return ["open", "start"].find((name) => allows(name, ws) && !(isLeaving && name === "open")) ?? null;
}

export const others = (ws) => ["start", "stop", "archive", "delete"].filter((name) => name !== primary(ws) && allows(name, ws));
