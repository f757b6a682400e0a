"use strict";
/*
 * A chat beyond links and forms: Enter sends, what is sent leaves the page where it is, and whoever reads the end stays
 * there while it grows. Without this the same forms are posted and the page is loaded again.
 *
 * textarea[data-enter]   Enter sends its form, Shift and Enter begins a line
 * form#say[data-say]     is sent in the background
 */
(() => {
  const page = document;

  page.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.altKey) return;
    if (!event.target.matches?.("textarea[data-enter]")) return;
    event.preventDefault();
    const form = event.target.form, buttons = [...form.querySelectorAll("button")];
    if (event.target.value.trim()) form.requestSubmit(buttons[(event.ctrlKey || event.metaKey) && buttons[1] ? 1 : 0]);
  });

  /* The end stays in sight while it grows, unless the reader has gone up. */
  const log = page.getElementById("chat")?.closest(".chat");
  if (!log) return;
  const root = page.scrollingElement;
  const atEnd = () => root.scrollHeight - root.scrollTop - innerHeight < 120;
  let pinned = location.hash === "#end" || !location.hash;
  const follow = () => { if (pinned) root.scrollTop = root.scrollHeight; };
  addEventListener("scroll", () => { pinned = atEnd(); }, { passive: true });
  new ResizeObserver(follow).observe(log);
  follow();

  /* A form that is sent in the background. A refusal shows the page that a plain form would have led to. */
  const drawn = () => [...crypto.getRandomValues(new Uint8Array(16))].map((each) => each.toString(16).padStart(2, "0")).join("");
  page.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.id !== "say" || event.defaultPrevented) return;
    event.preventDefault();
    send(form, event.submitter);
  });
  function ended(form) {
    delete form.dataset.sent;
    const note = page.getElementById("ended") ?? page.createElement("p");
    Object.assign(note, { id: "ended", className: "wrong", textContent: "The session has ended. Sign in again in another tab, then send this." });
    note.setAttribute("role", "alert");
    form.before(note);
  }
  async function send(form, button) {
    const body = new URLSearchParams(new FormData(form, button)), text = form.elements.text, said = text.value;
    try {
      const answer = await fetch(form.action, { method: "POST", body, redirect: "manual", credentials: "same-origin" });
      if (answer.status === 401) return ended(form);
      if (answer.type !== "opaqueredirect") throw new Error(String(answer.status));
      form.elements.key.value = `console-${drawn()}`;
      if (text.value === said) text.value = "";
      delete form.dataset.sent;
      page.getElementById("ended")?.remove();
      pinned = true;
    } catch {
      const how = page.createElement("input");
      Object.assign(how, { type: "hidden", name: "how", value: button?.value ?? "send" });
      form.append(how);
      form.submit();
    }
  }
})();
