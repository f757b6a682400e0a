"use strict";
/*
 * What pages do beyond links and forms: live regions, streamed text, keys, times in the reader's zone. No page needs it.
 *
 * [data-live] with an id     replaced by the server's own rendering when something changed
 * body[data-changes]         what the page subscribes to: the query of /console/changes
 * [data-stream="…/events"]   the text of a turn or conversation as it comes, as text nodes in its .stream
 * [data-key="a"]             pressed, followed or focused by that key; [data-go="n"] by g and that key
 * [data-row]                 j and k go from one to the next: its first link or button gets the focus
 * form[data-confirm]         asks before it is sent
 *
 * No key or click sends a form that it was not meant for: one that was made before the page was drawn, and the repeats of
 * a key that is held down, press no button.
 */
(() => {
  const WAIT = 1000, SLOWEST = 30000, MOST_TEXT = 200000;
  const page = document;
  const all = (selector, root = page) => [...root.querySelectorAll(selector)];

  /* When the page was first drawn. Earlier keys and clicks were meant for the page before. */
  let drawn = Infinity;
  requestAnimationFrame(() => requestAnimationFrame((now) => { drawn = now; }));
  const early = (event) => event.isTrusted && event.timeStamp < drawn;
  addEventListener("click", (event) => {
    if (early(event) && event.target.closest?.("form[method=post] button")) event.preventDefault();
  }, true);

  /* Times */
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const units = [[172800, 86400, "d"], [3600, 3600, "h"], [60, 60, "min"]];
  function words(seconds) {
    const whole = Math.round(seconds);
    for (const [from, size, name] of units) if (whole >= from) return `${Math.floor(whole / size)} ${name}`;
    return `${whole} s`;
  }
  function times(root) {
    for (const each of all("time[datetime]", root)) {
      const at = new Date(each.dateTime);
      if (Number.isNaN(at.valueOf())) continue;
      if (!each.dataset.utc) each.dataset.utc = each.title;
      each.title = `${local.format(at)} (${each.dataset.utc})`;
      if (each.classList.contains("ago")) {
        const passed = (Date.now() - at) / 1000;
        each.textContent = Math.abs(passed) < 1 ? "now" : passed > 0 ? `${words(passed)} ago` : `in ${words(-passed)}`;
      } else each.textContent = local.format(at);
    }
  }

  /* Live regions: a hint comes, the page is fetched again, and what differs is replaced. */
  const rendered = new WeakMap();
  const source = (element) => element.outerHTML
    .replace(/(<time class="ago"[^>]*>)[^<]*/g, "$1")
    .replace(/(<input type="hidden" name="key" value=")[^"]*/g, "$1");  // drawn for each rendering
  for (const each of all("[data-live][id]")) rendered.set(each, source(each));
  let hints = null, due = 0, last = 0, busy = false, again = false, composing = false, wait = WAIT, gone = false;
  const settled = new Set();

  function changed() {
    if (gone || page.hidden || due) return;
    due = setTimeout(refresh, Math.max(0, last + wait - Date.now()));
  }
  const selecting = (region) => {
    const held = getSelection();
    return held && !held.isCollapsed && region.contains(held.anchorNode);
  };
  async function refresh() {
    due = 0;
    if (busy) { again = true; return; }
    const regions = all("[data-live][id]");
    if (gone || page.hidden || !regions.length) return;
    if (composing || regions.some(selecting)) { last = Date.now(); changed(); return; }
    busy = true;
    const began = Date.now();
    try {
      const answer = await fetch(location.href, {
        headers: { Accept: "text/html", "X-Console-Fragment": regions.map((each) => each.id).join(",") },
        credentials: "same-origin", redirect: "error", cache: "no-store",
      });
      if (answer.status === 401 || answer.status === 404) return stop(answer.status);
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      const made = new DOMParser().parseFromString(text, "text/html");
      for (const each of regions) {
        const next = made.getElementById(each.id);
        if (next && each.isConnected && !selecting(each) && !composing) swap(each, next);
      }
      showProgress();
      for (const step of settled) forget(step);
      settled.clear();
      wait = Math.max(WAIT, 4 * (Date.now() - began));  // a page that costs much is asked for less often
    } catch {
      wait = Math.min(wait * 2, SLOWEST);
      again = true;
    } finally {
      busy = false;
      last = Date.now();
      if (again) { again = false; changed(); }
    }
  }
  function stop(status) {
    gone = true;
    if (hints) hints.close();
    const words = status === 401 ? "The session has ended. " : "This is no longer here. ";
    const note = page.createElement("p");
    note.className = "told";
    note.setAttribute("role", "alert");
    const link = page.createElement("a");
    link.href = location.href;
    link.textContent = "Load the page again";
    note.append(words, link);
    page.getElementById("main").prepend(note);
  }

  /* What a reader has done to a region is kept when it is replaced. */
  const held = (element) => element.id || `${element.form ? element.form.getAttribute("action") : ""} ${element.name}`;
  function place(element, region) {
    if (element.id) return [`#${CSS.escape(element.id)}`, 0];
    const href = element.getAttribute("href"), tag = element.localName;
    const selector = element.name ? `${tag}[name="${CSS.escape(element.name)}"]`
      : href ? `${tag}[href="${CSS.escape(href)}"]` : tag;
    return [selector, all(selector, region).indexOf(element)];
  }
  const chosen = (select) => [...select.options].some((one) => one.selected !== one.defaultSelected);
  function swap(old, next) {
    const now = source(next);
    if (rendered.get(old) === now) return;
    const opened = new Map(all("details", old).map((each, n) => [each.id || n, each.open]));
    const typed = new Map();
    for (const each of all("input, textarea, select", old)) {
      if (each.type === "hidden" || each.type === "password") continue;
      if (each.type === "checkbox" || each.type === "radio") {
        if (each.checked !== each.defaultChecked) typed.set(`${held(each)} ${each.value}`, each.checked);
      } else if (each.localName === "select" ? chosen(each) : each.value !== each.defaultValue) {
        typed.set(held(each), each.value);
      }
    }
    const scrolled = all("pre, .scroll", old).map((each) => [each.scrollTop, each.scrollLeft]);
    const active = old.contains(page.activeElement) ? page.activeElement : null;
    const [selector, count] = active ? place(active, old) : ["", 0];
    const range = active && "selectionStart" in active ? [active.selectionStart, active.selectionEnd] : null;
    const here = old.querySelector(".here[id]");

    const fresh = page.adoptNode(next);
    old.replaceWith(fresh);
    rendered.set(fresh, now);
    all("details", fresh).forEach((each, n) => {
      const was = opened.get(each.id || n);
      if (was !== undefined) each.open = was;
    });
    for (const each of all("input, textarea, select", fresh)) {
      const box = each.type === "checkbox" || each.type === "radio";
      const was = typed.get(box ? `${held(each)} ${each.value}` : held(each));
      if (was === undefined) continue;
      if (box) each.checked = was;
      else if (each.localName !== "select" || all("option", each).some((one) => one.value === was)) each.value = was;
    }
    all("pre, .scroll", fresh).forEach((each, n) => {
      if (scrolled[n]) [each.scrollTop, each.scrollLeft] = scrolled[n];
    });
    if (here) page.getElementById(here.id)?.classList.add("here");
    if (active) {
      const found = active === old ? fresh : all(selector, fresh)[Math.max(0, count)];
      found?.focus({ preventScroll: true });
      if (found && range && range[0] !== null) try { found.setSelectionRange(...range); } catch { /* has none */ }
    }
    times(fresh);
  }

  /* Hints, while somebody looks. A hidden page holds no connection: a browser has six for each address. */
  function listen() {
    if (hints || gone || !all("[data-live][id]").length || page.body.dataset.changes === undefined) return;
    hints = new EventSource(`/console/changes${page.body.dataset.changes ? `?${page.body.dataset.changes}` : ""}`);
    let before = false;
    hints.onopen = () => { if (before) changed(); before = true; };
    hints.addEventListener("changed", changed);
    hints.onerror = () => {
      if (hints?.readyState !== EventSource.CLOSED) return;
      hints = null;
      changed();  // which finds out whether the session is over
      if (!gone) setTimeout(() => { if (!page.hidden) listen(); }, SLOWEST);
    };
  }

  /* How far tools are with calls that run, as they say: at the call, where the page shows it. */
  const progress = new Map(), amount = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });
  function showProgress() {
    for (const [call, said] of progress) {
      const head = (page.getElementById(call) ?? page.getElementById(`call-${call}`))?.querySelector(".call-head, summary");
      if (!head) continue;
      let line = head.querySelector(".progress");
      if (!line) {
        line = page.createElement("span");
        line.className = "progress quiet";
        head.append(" ", line);
      }
      const whole = said.total === undefined ? "" : ` of ${amount.format(said.total)}`;
      line.textContent = seen(`${amount.format(said.progress)}${whole}${said.message ? `: ${said.message}` : ""}`);
    }
  }
  function endProgress(call) {
    if (!progress.delete(call)) return;
    for (const id of [call, `call-${call}`]) page.getElementById(id)?.querySelector(".progress")?.remove();
  }

  /* Streamed text. What is not seen, or turns text round, is shown by its code point, as the server's pages show it. */
  const unseen = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
  const seen = (text) => text.replace(unseen, (each) => `[U+${each.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}]`);
  const streams = new Map(), texts = new Map();
  function forget(step) {
    for (const [key, line] of texts) if (line.dataset.step === step) { line.remove(); texts.delete(key); }
  }
  function follow(element) {
    const at = element.dataset.stream, known = streams.get(at);
    if (known) return;
    const events = new EventSource(at);
    streams.set(at, events);
    const into = () => page.querySelector(`[data-stream="${CSS.escape(at)}"] .stream`);
    const data = (event) => JSON.parse(event.data);
    events.addEventListener("chunk", (event) => {
      const chunk = data(event), target = into();
      if (!target || chunk.chunk_type !== "content" || !chunk.content) return;
      let line = texts.get(chunk.step_id);
      if (line && (!line.isConnected || line.dataset.attempt !== String(chunk.attempt))) { line.remove(); line = null; }
      if (!line) {
        line = page.createElement("span");
        line.dataset.step = chunk.step_id;
        line.dataset.attempt = chunk.attempt;
        texts.set(chunk.step_id, line);
        target.append(line);
      }
      line.append(seen(chunk.content));
      if (line.textContent.length > MOST_TEXT) line.firstChild.remove();
      if (line.childNodes.length > 500) line.normalize();
    });
    events.addEventListener("reset", (event) => forget(data(event).step_id));
    events.addEventListener("step", (event) => { settled.add(data(event).step_id); changed(); });
    events.addEventListener("progress", (event) => {
      const said = data(event);
      if (!progress.has(said.tool_call_id)) changed();  // the page may not show the call yet
      progress.set(said.tool_call_id, said);
      showProgress();
    });
    events.addEventListener("card", (event) => {
      const card = data(event);
      if (card.type === "tool.result") endProgress(card.tool_call_id);
    });
    for (const kind of ["state", "card", "outcome"]) events.addEventListener(kind, changed);
    events.addEventListener("outcome", () => { if (at.includes("/turns/")) events.close(); });
  }
  function unfollow() {
    for (const each of streams.values()) each.close();
    streams.clear();
    for (const each of texts.values()) each.remove();
    texts.clear();
  }
  function look() {
    if (page.hidden) {
      if (hints) hints.close();
      hints = null;
      unfollow();
      return;
    }
    listen();
    all("[data-stream]").forEach(follow);
  }
  page.addEventListener("visibilitychange", () => { look(); if (!page.hidden) changed(); });
  addEventListener("pagehide", () => { if (hints) hints.close(); hints = null; unfollow(); });
  addEventListener("pageshow", (event) => { if (event.persisted) { look(); changed(); } });
  page.addEventListener("compositionstart", () => { composing = true; });
  page.addEventListener("compositionend", () => { composing = false; });

  /* Keys, but never where somebody types. */
  const typing = (element) => element.isContentEditable || element.matches("input, textarea, select");
  let going = 0;
  function press(element) {
    if (typing(element)) element.focus();
    else element.click();
  }
  function move(by) {
    const rows = all("[data-row]");
    if (!rows.length) return;
    const at = rows.findIndex((each) => each.classList.contains("here"));
    const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    rows.forEach((each) => each.classList.toggle("here", each === next));
    (next.matches("a, button") ? next : next.querySelector("a, button"))?.focus();
    next.scrollIntoView({ block: "nearest" });
  }
  page.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const dialog = page.getElementById("keys"), key = event.key;
    if (dialog?.open && key !== "?") return;
    const name = key.length === 1 ? CSS.escape(key) : "";
    if (going && name) {
      clearTimeout(going);
      going = 0;
      const target = page.querySelector(`[data-go="${name}"]`);
      if (target) { event.preventDefault(); target.click(); }
      return;
    }
    const target = name && page.querySelector(`main [data-key="${name}"]:not([disabled])`);
    if (key === "g") going = setTimeout(() => { going = 0; }, 1500);
    else if (key === "?" && dialog) { if (dialog.open) dialog.close(); else dialog.showModal(); }
    else if (key === "j" || key === "k") move(key === "j" ? 1 : -1);
    else if (target && (early(event) || event.repeat) && target.closest("form[method=post]")) { /* was meant for another page */ }
    else if (target) press(target);
    else return;
    event.preventDefault();
  });
  page.addEventListener("click", (event) => {
    const opener = event.target.closest?.("[data-opens]");
    if (!opener) return;
    event.preventDefault();
    page.getElementById(opener.dataset.opens)?.showModal();
  });

  /* A form is sent once. */
  page.addEventListener("submit", (event) => {
    const form = event.target, asked = event.submitter?.dataset.confirm ?? form.dataset.confirm;
    if (form.dataset.sent || (asked && !confirm(asked))) { event.preventDefault(); return; }
    if (form.method === "post") {
      form.dataset.sent = "1";
      setTimeout(() => { delete form.dataset.sent; }, 3000);
    }
  });

  times(page);
  setInterval(() => { if (!page.hidden) times(page); }, 10000);
  if (location.search.includes("told=")) {  // said once: a reload does not say it again
    const clean = new URL(location.href);
    clean.searchParams.delete("told");
    history.replaceState(null, "", clean);
  }
  look();
})();
