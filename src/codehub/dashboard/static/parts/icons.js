/** Drawn here, so that no font or image has to be fetched. Decoration: the words beside them say it. */

import { drawing } from "../core/element.js";

const PATHS = {
  open: "M14 4h6v6M20 4l-9 9M18 14v5a1 1 0 0 1-1 1H5a1 1 0 0 1-1-1V7a1 1 0 0 1 1-1h5",
  start: "M7 4v16l13-8z",
  stop: "M7.5 6h9A1.500 1.500 0 0 1 18 7.500v9a1.500 1.500 0 0 1-1.500 1.500h-9A1.500 1.500 0 0 1 6 16.500v-9A1.500 1.500 0 0 1 7.500 6z",
  archive: "M4 5h16v4H4zM6 9v10h12V9M10 13h4",
  delete: "M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12M10.5 11v5M13.5 11v5",
  undelete: "M9 14 4 9l5-5M4 9h10a6 6 0 0 1 0 12h-3",
  recover: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  more: "M7 12a2 2 0 1 1-4 0 2 2 0 0 1 4 0zM14 12a2 2 0 1 1-4 0 2 2 0 0 1 4 0zM21 12a2 2 0 1 1-4 0 2 2 0 0 1 4 0z",
  plus: "M12 5v14M5 12h14",
  search: "M11 4a7 7 0 1 1 0 14 7 7 0 0 1 0-14zM20 20l-4-4",
  check: "M5 12.5 10 17 19 7",
  close: "M6 6l12 12M18 6 6 18",
  folder: "M4 6h6l2 2h8v11H4z",
  file: "M7 3h7l4 4v14H7zM14 3v4h4",
  link: "M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  warning: "M12 4 2.5 20h19zM12 10v4M12 17h.01",
  back: "M15 5l-7 7 7 7",
  copy: "M9 9h10v11H9zM5 15V4h10",
  user: "M12 4a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM5 20c1-4 4-5 7-5s6 1 7 5",
  settings: "M4 7h10M18 7h2M4 17h2M10 17h10M14 5v4M6 15v4",
  key: "M8 11a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM11 12l8-8M16 7l3 3",
  keep: "M12 20s-7-4.5-7-10a4 4 0 0 1 7-2.5A4 4 0 0 1 19 10c0 5.500-7 10-7 10z",
};

export function icon(name) {
  const filled = ["start", "stop", "more"].includes(name);
  return drawing(
    "svg",
    { class: filled ? "icon filled" : "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    drawing("path", { d: PATHS[name] }),
  );
}
