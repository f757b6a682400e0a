// The AI SDK's default OpenAI provider (Responses), over three turns: earlier answers come back as item_reference.
// `node ai_sdk.mjs URL TOKEN AGENT COUNT` prints how many conversations came whole, as JSON.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.MODULES}/`);
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);
const { streamText } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");

const [url, token, agent, count] = process.argv.slice(2);
const LOOK = "I look it up.";
const ANSWER = "It is found in the third drawer.";
const SPEAKS = JSON.stringify({
  steps: [
    { text: LOOK, tool_calls: [{ name: "search", arguments: { q: "drawer" } }] },
    { text: ANSWER, chunks: 6 },
  ],
});
const MIRRORS = JSON.stringify({ steps: [] });
let references = 0;
const seen = async (address, init) => {
  references += (String(init.body).match(/item_reference/g) ?? []).length;
  return fetch(address, init);
};
const openai = createOpenAI({ baseURL: `${url}/openai/v1`, apiKey: token, fetch: seen });
const equal = (found, expected) => {
  if (JSON.stringify(found) !== JSON.stringify(expected)) throw new Error(`${JSON.stringify(found)} is not ${JSON.stringify(expected)}`);
};

async function converse(number) {
  const model = openai(agent.replace("{}", String(number % 10)));
  const messages = [];
  for (const script of [SPEAKS, SPEAKS, MIRRORS]) {
    messages.push({ role: "user", content: script });
    let failure;
    const run = streamText({ model, messages, maxRetries: 0, onError: ({ error }) => { failure = error; } });
    let text = "";
    for await (const delta of run.textStream) text += delta;
    if (failure) throw failure;
    messages.push(...(await run.response).messages);
    if (script === SPEAKS) equal(text, `${LOOK}\n\n${ANSWER}`);
    else {
      const roles = JSON.parse(text).messages.map(([role]) => role).filter((role) => role !== "system");
      equal(roles, ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant", "user"]);
    }
  }
}

const failures = [];
let next = 0;
const worker = async () => {
  while (next < Number(count)) {
    const number = next++;
    try { await converse(number); } catch (error) {
      failures.push(`${number}: ${error.message ?? error} ${error.responseBody ?? ""}`.slice(0, 500));
    }
  }
};
await Promise.all(Array.from({ length: 10 }, worker));
if (!references) failures.push("no item_reference was sent");
console.log(JSON.stringify({ asked: Number(count), whole: Number(count) - failures.length, references, failures: failures.slice(0, 5) }));
