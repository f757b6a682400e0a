// A front end on AG-UI without a build step: it posts a run, reads its events, and keeps what they say.
//
// What others wrote is text (textContent), never markup. The token stays in its field. A stream that is cut is asked for
// again under the same run id: the gateway replaces what it sends again by a MESSAGES_SNAPSHOT.

const at = (id) => document.getElementById(id);
const thread = crypto.randomUUID();
const ENDS = new Set(["RUN_FINISHED", "RUN_ERROR"]);
let messages = [];
let asked = []; // what the thread waits for people to decide
const own = { tools: [], run: {} }; // what the agent may do on this page (board.js): descriptions, and functions by name
let pending = []; // calls of these functions that the thread waits for
let turn = null; // the turn that runs, for the button that stops it

function address(path) {
  return new URL(path, at("url").value);
}

function post(path, body) {
  const headers = { authorization: `Bearer ${at("token").value}`, "content-type": "application/json" };
  return fetch(address(path), { method: "POST", headers, body: JSON.stringify(body) });
}

// The events of a response: lines of `data: {…}`, each followed by an empty line.
async function* events(response) {
  let rest = "";
  for await (const part of pieces(response.body.pipeThrough(new TextDecoderStream()))) {
    const blocks = (rest + part).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) if (block.startsWith("data: ")) yield JSON.parse(block.slice(6));
  }
}

async function* pieces(stream) {
  const reader = stream.getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
}

const messageOf = (id) => messages.find((each) => each.id === id);
const callsOf = (message) => message.toolCalls ?? [];
const callOf = (id) => messages.flatMap(callsOf).find((each) => each.id === id);

function opened(id, role) {
  if (!messageOf(id)) messages.push({ id, role, content: "" });
  return messageOf(id);
}

function take(event) {
  switch (event.type) {
    case "RUN_STARTED":
      turn = event.metadata.turnstile.agent_turn_id;
      break;
    case "MESSAGES_SNAPSHOT": {
      const own = messages.filter((each) => each.role === "reasoning");
      messages = [...event.messages, ...own.filter((each) => !event.messages.some(({ id }) => id === each.id))];
      break;
    }
    case "TEXT_MESSAGE_START":
    case "REASONING_MESSAGE_START":
      opened(event.messageId, event.type.startsWith("TEXT") ? "assistant" : "reasoning");
      break;
    case "TEXT_MESSAGE_CONTENT":
    case "REASONING_MESSAGE_CONTENT":
      messageOf(event.messageId).content = (messageOf(event.messageId).content ?? "") + event.delta;
      break;
    case "TOOL_CALL_START": {
      const parent = opened(event.parentMessageId, "assistant");
      const call = { id: event.toolCallId, type: "function", function: { name: event.toolCallName, arguments: "" } };
      if (!callOf(call.id)) parent.toolCalls = [...callsOf(parent), call];
      break;
    }
    case "TOOL_CALL_ARGS":
      callOf(event.toolCallId).function.arguments += event.delta;
      break;
    case "TOOL_CALL_RESULT":
      messages.push({ id: event.messageId, role: "tool", toolCallId: event.toolCallId, content: event.content });
      break;
    case "RUN_FINISHED":
      asked = event.outcome?.interrupts ?? [];
      pending = event.outcome?.pendingToolCallIds ?? [];
      break;
  }
}

// One run, to its end; where the stream is cut the same run is asked for again.
async function run(more = {}) {
  const runId = crypto.randomUUID();
  const empty = { tools: own.tools, context: [], state: {}, forwardedProps: {} };
  const open = asked;
  busy(true);
  try {
    for (;;) {
      const last = await once({ threadId: thread, runId, messages, ...empty, ...more });
      if (last?.type === "RUN_ERROR" && last.code !== "server_unavailable") {
        asked = open;
        return show(`${last.code}: ${last.message}`);
      }
      if (last?.type === "RUN_FINISHED" && pending.length) {
        pending.forEach(runs);
        return await run();
      }
      if (last?.type === "RUN_FINISHED") return show(last.outcome?.type ?? "success");
      show("The connection broke; it goes on in a moment.");
      await new Promise((done) => setTimeout(done, 500));
    }
  } finally {
    busy(false);
  }
}

// Run a function of the page that the agent calls; its output, or why it failed, goes with the next run.
function runs(call) {
  const { name, arguments: given } = callOf(call).function;
  const output = { id: crypto.randomUUID(), role: "tool", toolCallId: call, content: "" };
  try {
    output.content = JSON.stringify(own.run[name](JSON.parse(given)) ?? null);
  } catch (error) {
    output.error = String(error);
  }
  messages.push(output);
}

// The last event of a stream; undefined if it was cut.
async function once(input) {
  let response;
  try {
    response = await post(`/agui/${encodeURIComponent(at("agent").value)}`, input);
  } catch {
    return undefined;
  }
  if (!response.ok) {
    const problem = await response.json();
    return { type: "RUN_ERROR", code: problem.code, message: problem.detail };
  }
  try {
    for await (const event of events(response)) {
      take(event);
      draw();
      if (ENDS.has(event.type)) return event;
    }
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // what fetch says of a connection that broke
  }
  return undefined;
}

function busy(runs) {
  at("send").disabled = runs;
  at("stop").disabled = !runs;
  if (runs) asked = [];
  draw();
  if (!runs) at("text").focus();
}

function show(words) {
  at("state").textContent = words;
}

function made(kind, words, from = {}) {
  const element = Object.assign(document.createElement(kind), from);
  if (words !== undefined) element.textContent = words;
  return element;
}

function draw() {
  const lines = messages.flatMap((message) => [
    ...(message.content ? [made("li", message.content, { className: message.role })] : []),
    ...callsOf(message).map(({ function: { name, arguments: given } }) =>
      made("li", `${name} ${given}`, { className: "call" }),
    ),
  ]);
  at("messages").replaceChildren(...lines);
  at("asked").replaceChildren(...asked.map(question));
}

// A question is answered by what its schema wants, an approval by a button.
function question(interrupt) {
  const box = made("fieldset");
  const own = interrupt.metadata.turnstile;
  const buttons = made("div", undefined, { className: "buttons" });
  const field = made("textarea", undefined, { rows: 4, ariaLabel: "Answer" });
  const answer = (payload) => decide(interrupt, { status: "resolved", payload });
  const button = (words, act) => {
    const pressed = () => {
      try {
        act();
      } catch (error) {
        show(error instanceof SyntaxError ? "That is no JSON." : String(error));
      }
    };
    buttons.append(made("button", words, { type: "button", onclick: pressed }));
  };
  box.append(made("legend", own.tool_name), made("div", interrupt.message));
  if (interrupt.reason === "input_required") {
    for (const choice of interrupt.responseSchema.enum ?? []) button(String(choice), () => answer(choice));
    if (!interrupt.responseSchema.enum) {
      const isText = interrupt.responseSchema.type === "string";
      button("Answer", () => answer(isText ? field.value : JSON.parse(field.value)));
    }
    button("Reject", () => decide(interrupt, { status: "cancelled" }));
  } else {
    field.value = JSON.stringify(own.arguments, null, 2);
    const acts = {
      approve: () => answer({ decision: "approve" }),
      edit: () => answer({ decision: "edit", arguments: JSON.parse(field.value) }),
      reject: () => answer({ decision: "reject" }),
    };
    for (const [name, act] of Object.entries(acts)) if (own.allowed_decisions.includes(name)) button(name, act);
    field.oninput = () => {
      for (const each of buttons.children) if (each.textContent === "approve") each.disabled = true; // not what is shown
    };
  }
  if (!interrupt.responseSchema.enum) box.append(field);
  box.append(buttons);
  return box;
}

const answers = new Map();

// All that is open is answered together; the metadata names what was shown.
function decide(interrupt, answer) {
  answers.set(interrupt.id, { interruptId: interrupt.id, metadata: interrupt.metadata, ...answer });
  const left = asked.filter((each) => !answers.has(each.id));
  if (left.length) {
    at("asked").replaceChildren(...left.map(question));
    return;
  }
  const resume = asked.map((each) => answers.get(each.id));
  answers.clear();
  run({ resume });
}

at("where").addEventListener("submit", (event) => event.preventDefault());
at("say").addEventListener("submit", (event) => {
  event.preventDefault();
  messages.push({ id: crypto.randomUUID(), role: "user", content: at("text").value });
  at("text").value = "";
  show("");
  run();
});
at("stop").addEventListener("click", () => turn && post(`/v1/turns/${turn}/stop`, {}));

export { own };
