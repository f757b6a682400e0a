// The conformance suite knows no tokens: each of its requests gets the one of TOKEN, whichever way it is sent.
import http from "node:http";
import { createRequire } from "node:module";

const bearer = `Bearer ${process.env.TOKEN}`;

const { fetch, request } = { fetch: globalThis.fetch, request: http.request };
globalThis.fetch = (input, init = {}) => {
  const headers = new Headers(init.headers ?? (input instanceof Request ? input.headers : undefined));
  headers.set("authorization", bearer);
  return fetch(input, { ...init, headers });
};
http.request = (...given) => {
  const made = request(...given);
  made.setHeader("authorization", bearer);
  return made;
};
const undici = createRequire(`${process.env.MODULES}/`)("undici");
const withToken = (dispatch) => (options, handler) =>
  dispatch({ ...options, headers: { ...options.headers, authorization: bearer } }, handler);
undici.setGlobalDispatcher(undici.getGlobalDispatcher().compose(withToken));
