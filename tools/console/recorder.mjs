// Runs in the page before its own scripts: notes each control that is seen, and each that is used. Names are of the page and the label; texts
// that differ from row to row (numbers, names of the address) are cut, so that the buttons of all rows are one.
export function recorder() {
  const CONTROLS = "button, input, select, textarea, a.button, .side a, summary";
  const names = () => location.hash.slice(2).split("?")[0].split("/").slice(1).filter(Boolean).map((one) => { try { return decodeURIComponent(one); } catch { return one; } });
  const plain = (text) => {
    for (const one of names()) if (one.length > 1) text = text.replaceAll(one, "…");
    return text.replace(/press[\w-]*/g, "…").replace(/[\d,.]+(?=\D|$)/g, "#").replace(/[↑↓]/g, "").replace(/ (of|in) \/$/, " of …").replace(/\s+/g, " ").trim().slice(0, 80);
  };
  const labelOf = (one) => {
    const label = one.closest("label");
    return plain(one.getAttribute("aria-label") || (label ? (label.querySelector("span") || label).textContent : "") || (one.tagName === "SELECT" ? "" : one.textContent) || one.placeholder || one.name || "");
  };
  const pageOf = () => {
    const page = location.hash.slice(2).split(/[/?]/)[0] || "overview", tab = document.querySelector("main [role=tab][aria-selected=true]");
    return page + (tab ? ":" + plain(tab.textContent) : "");
  };
  const kindOf = (one) => {
    if (one.getAttribute("role") === "tab") return "tab";
    if (one.tagName === "SELECT") return "select";
    if (one.tagName === "INPUT" && ["checkbox", "radio"].includes(one.type)) return "check";
    if (one.tagName === "INPUT" && one.type === "file") return "file";
    return one.tagName === "INPUT" || one.tagName === "TEXTAREA" ? "field" : "button";
  };
  const describe = (one) => {
    const dialog = one.closest("dialog"), kind = kindOf(one), label = labelOf(one), row = one.closest("tr, article, .row");
    const where = one.closest(".side") ? "menu" : one.closest(".top") ? "top" : one.closest("main.login") ? "login" : one.closest("main") || dialog ? "main" : "other";
    const card = !dialog && one.closest(".card")?.querySelector("h2");
    const scope = where === "main" ? pageOf().replace(kind === "tab" ? /:.*/ : /$^/, "") + (dialog ? ` / ${plain(dialog.getAttribute("aria-label") || "")}` : card && !one.closest("article") ? ` [${plain(card.textContent)}]` : "") : where;
    const typed = dialog && label.startsWith("Type") ? one.closest("label").querySelector("b")?.textContent : undefined;
    const acts = one.tagName === "BUTTON" && one.type === "submit";
    return { id: `${scope} | ${kind} ${label}`, scope, kind, label, where, dialog: Boolean(dialog), row: Boolean(row), ours: Boolean(row && /press/.test(row.textContent)), danger: one.classList.contains("danger"), acts, word: typed };
  };
  const visible = () => {
    const modal = document.querySelector("dialog[open]");
    return [...(modal || document).querySelectorAll(CONTROLS)].filter((one) => !one.disabled && !one.classList.contains("skip") && one.checkVisibility());
  };
  const noted = new Set();
  // a page shows its predecessor until its own module is loaded: for that time nothing is noted
  let moved = -1000;
  window.addEventListener("hashchange", () => { moved = performance.now(); later(); }, true);
  const note = () => { if (performance.now() - moved < 400) return later(); for (const one of visible()) { const value = describe(one); if (!noted.has(value.id) && window.noteSeen) { noted.add(value.id); window.noteSeen(value); } } };
  const press = (event) => { const one = event.target instanceof Element && event.target.closest(CONTROLS); if (one && window.noteUsed) window.noteUsed(describe(one).id); };
  for (const kind of ["click", "input", "change"]) window.addEventListener(kind, press, true);
  let due = 0;
  const later = () => { if (!due) due = setTimeout(() => { due = 0; note(); }, 100); };
  new MutationObserver(later).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["disabled", "open", "aria-selected"] });
  window.recorder = {
    list() { note(); const all = new Map(); for (const one of visible()) { const value = describe(one); if (!all.has(value.id) || value.ours) all.set(value.id, value); } return [...all.values()]; },
    // of rows, the first of this test, else the first
    element(id) { const all = visible().filter((one) => describe(one).id === id); return all.find((one) => describe(one).ours) || all[0] || null; },
    sideways() {
      const page = document.scrollingElement, modal = document.querySelector("dialog[open]");
      for (const box of [page, modal]) if (box && box.scrollWidth > box.clientWidth) {
        const edge = box === page ? page.clientWidth : box.getBoundingClientRect().right, inner = (one) => [".scroll", ".graph", ".log", "pre", "code"].some((each) => one.parentElement?.closest(each));
        const wide = [...box.querySelectorAll("*")].filter((one) => one.getBoundingClientRect().right > edge + 1 && !inner(one)).slice(-1)[0];
        return `${box.scrollWidth} > ${box.clientWidth}: ${wide ? wide.outerHTML.slice(0, 120) : "?"}`;
      }
      return "";
    },
  };
}
