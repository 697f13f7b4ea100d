// The pages work without this script. It adds: copying, search while typing, picking all rows of
// a table, questions before dangerous forms, and parts of a page that renew themselves.
"use strict";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = button.dataset.copy;
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // without https there is no clipboard
    const area = document.createElement("textarea");
    area.value = text;
    area.setAttribute("readonly", "");
    area.className = "skip";
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.dataset.state = done ? "copied" : "failed";
  button.title = done ? "Copied" : "Copying failed";
  setTimeout(() => { delete button.dataset.state; button.title = "Copy"; }, 1500);
});

// The first page has the style sheet in itself. The following ones name its file, which is in the
// browser's cache once it was fetched here.
const style = document.querySelector("style[data-sheet]");
if (style) addEventListener("load", async () => {
  try {
    const answer = await fetch(style.dataset.sheet);
    await answer.blob();
    const secure = location.protocol === "https:" ? "; secure" : "";
    if (answer.ok) document.cookie = `purser_style=${style.dataset.sheet.split("/").at(-2)}; path=/; max-age=31536000; samesite=lax${secure}`;
  } catch { /* the next page has it in itself, too */ }
});

// replace fetches a page and takes over the element with the id from it.
async function replace(id, url, signal) {
  const answer = await fetch(url, {headers: {"Accept": "text/html"}, signal});
  if (!answer.ok) return false;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById(id), old = document.getElementById(id);
  if (!fresh || !old) return false;
  old.replaceWith(fresh);
  return true;
}

// A form with data-live="ID" asks for its page while somebody types, and shows the element ID
// of it. The address follows, so that it can be linked.
for (const form of document.querySelectorAll("form[data-live]")) {
  let timer, running;
  const ask = async () => {
    running?.abort();
    running = new AbortController();
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) query.append(name, value);
    const url = form.action.split("?")[0] + (query.size ? "?" + query : "");
    try {
      if (await replace(form.dataset.live, url, running.signal)) history.replaceState(null, "", url);
    } catch (e) {
      if (e.name !== "AbortError") form.submit();
    }
  };
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, 180); });
  form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(timer); ask(); });
}

// A link with data-follow="ID" leads to the same page with the parts that take longer. The script
// fetches it at once, and replaces the element ID with that of the answer.
for (const link of document.querySelectorAll("a[data-follow]")) replace(link.dataset.follow, link.href).catch(() => {}); // the link stays

// A form with data-preview="ID" posts to data-preview-to when it appears and while somebody edits
// it, and shows the element ID of the answer: first without the bytes, which take longer.
for (const form of document.querySelectorAll("form[data-preview]")) {
  let timer, running;
  const ask = async () => {
    running?.abort();
    running = new AbortController();
    const {signal} = running;
    document.getElementById(form.dataset.preview)?.setAttribute("aria-busy", "true");
    try {
      for (const bytes of ["later", "now"]) {
        const body = new URLSearchParams(new FormData(form));
        body.set("bytes", bytes);
        const answer = await fetch(form.dataset.previewTo, {method: "POST", body, signal});
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = page.getElementById(form.dataset.preview);
        if (fresh) document.getElementById(form.dataset.preview)?.replaceWith(fresh);
      }
    } catch { /* aborted for the next one, or the network: the old preview stays */ }
    if (!signal.aborted) document.getElementById(form.dataset.preview)?.removeAttribute("aria-busy");
  };
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, 400); });
  ask();
}

document.addEventListener("change", (event) => {
  const box = event.target;
  if (box.matches("[data-pick-all]")) {
    for (const other of box.closest("table").querySelectorAll("tbody input[type=checkbox]")) other.checked = box.checked;
  }
  const picks = box.closest("form, table")?.querySelectorAll("tbody input[type=checkbox]");
  if (!picks?.length) return;
  const count = [...picks].filter((p) => p.checked).length;
  for (const button of document.querySelectorAll("[data-needs-pick]")) {
    button.disabled = count === 0;
    button.textContent = button.dataset.needsPick + (count ? ` (${count})` : "");
  }
});
for (const button of document.querySelectorAll("[data-needs-pick]")) button.disabled = true;

document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm || event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// A select with data-submit sends its form when it changes.
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
});

// An element with data-refresh="SECONDS" renews itself from its own page while it can be seen.
function refresh(element) {
  const id = element.id, seconds = Number(element.dataset.refresh);
  setTimeout(async () => {
    const now = document.getElementById(id);
    if (!now?.dataset.refresh) return;
    if (!document.hidden && !now.contains(document.activeElement)) {
      try { await replace(id, location.href); } catch { /* the next time */ }
    }
    const next = document.getElementById(id);
    if (next?.dataset.refresh) refresh(next);
  }, seconds * 1000);
}
for (const element of document.querySelectorAll("[data-refresh][id]")) refresh(element);

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  const field = document.querySelector("[data-focus='/']");
  if (field) { event.preventDefault(); field.focus(); }
});

// What scrolls can be scrolled with the keyboard too, in browsers that don't see to it themselves.
function reachable() {
  for (const element of document.querySelectorAll(".scroll, pre, #preview")) {
    if (element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight) element.tabIndex = 0;
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
new MutationObserver(reachable).observe(document.body, {childList: true, subtree: true});

// On a narrow screen the tabs scroll: the current one is to be seen, and the one that has the focus.
// This isn't scrollIntoView, for in Chromium that moves the place from which the Tab key goes on, past
// the link to the content.
const tabs = document.querySelector(".tabs"), current = tabs?.querySelector("[aria-current]");
function center(tab) {
  const inside = tab.getBoundingClientRect(), around = tabs.getBoundingClientRect();
  tabs.scrollLeft += inside.left + inside.width / 2 - around.left - around.width / 2;
}
if (current) center(current);
tabs?.addEventListener("focusin", (event) => center(event.target));
