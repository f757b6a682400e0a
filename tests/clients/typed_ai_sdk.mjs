// The AI SDK: `generateObject`, and `generateText` with a tool, over chat completions.
// `node typed_ai_sdk.mjs URL TOKEN PROFILE COUNT` prints how many conversations came whole, as JSON.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.MODULES}/`);
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);
const { generateObject, generateText, stepCountIs, tool } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { z } = await load("zod");

const [url, token, profile, count] = process.argv.slice(2);
const GOOD = { id: 7, lines: ["bread"] };
const plays = (...steps) => JSON.stringify({ steps: steps.map((step) => ({ delay_seconds: 0.2, ...step })) });
const calls = (name, args) => ({ tool_calls: [{ name, arguments: args }] });
const REPAIRS = plays(calls("submit_result", { value: { id: "7" } }), { text: "Order 7." }, calls("submit_result", { value: GOOD }));
const WEATHER = plays(calls("weather", { city: "Graz" }), { text: "It is sunny in Graz." });
const openai = createOpenAI({ baseURL: `${url}/openai/v1`, apiKey: token });
const equal = (found, expected) => {
  if (JSON.stringify(found) !== JSON.stringify(expected)) throw new Error(`${JSON.stringify(found)} is not ${JSON.stringify(expected)}`);
};

async function converse() {
  const model = openai.chat(profile);
  const schema = z.object({ id: z.number().int(), lines: z.array(z.string()) });
  equal((await generateObject({ model, schema, prompt: REPAIRS, maxRetries: 8 })).object, GOOD);
  const weather = tool({
    description: "The weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `It is sunny in ${city}.`,
  });
  const said = await generateText({ model, tools: { weather }, stopWhen: stepCountIs(3), prompt: WEATHER, maxRetries: 8 });
  equal(said.text, "It is sunny in Graz.");
}

const failures = [];
let next = 0;
const worker = async () => {
  while (next < Number(count)) {
    const number = next++;
    try { await converse(); } catch (error) {
      failures.push(`${number}: ${error.message ?? error} ${error.responseBody ?? ""}`.slice(0, 500));
    }
  }
};
await Promise.all(Array.from({ length: 10 }, worker));
for (const failure of failures.slice(0, 5)) console.error(failure);
console.log(JSON.stringify({ asked: Number(count), whole: Number(count) - failures.length }));
