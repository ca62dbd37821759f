// Calls of the broker. A login makes a session: a cookie that no script reads, which counts with the console's header alone. The password
// is sent once, and kept nowhere.
const CONSOLE = { "x-flintmq-console": "1" };
// The page acts for this user alone: another tab may sign somebody else in.
export function setUser(user) { CONSOLE["x-flintmq-console"] = user === null ? "1" : name(user).replace(/[!'()*]/g, (one) => "%" + one.charCodeAt(0).toString(16).toUpperCase()); }
let lost = () => {};

export class Refusal extends Error {
  constructor(status, body) {
    super(body.reason || `HTTP ${status}`);
    this.status = status;
    this.word = body.error || "";
    this.fix = body.fix || "";
  }
}

export function login(user, password) {
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  return call("POST", "/api/v1/session", undefined, undefined, { authorization: "Basic " + btoa(String.fromCharCode(...bytes)) });
}

export const logout = () => call("DELETE", "/api/v1/session").catch(() => {});
export function onLost(then) { lost = then; }
export const name = (text) => encodeURIComponent(text);
// `.` and `..` are steps of a path to a browser, percent-encoded, too: the broker takes an octet 0xFF in front, which no name has.
const segment = (text) => (text === "." || text === ".." ? "%FF" + text : name(text));
export const path = (strings, ...names) => strings.reduce((all, text, at) => all + segment(names[at - 1]) + text);

async function send(method, url, body, signal, more) {
  const headers = { ...CONSOLE, "x-flintmq-request": "1", ...more };
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin", cache: "no-store", signal });
  // RabbitMQ's API says 401 to what a user may not, too: without a challenge the session goes on
  if (response.status === 401 && response.headers.get("www-authenticate")) lost();
  return response;
}

export async function call(method, url, body, signal, headers) {
  const response = await send(method, url, body, signal, headers);
  const text = await response.text();
  let value = null;
  try { value = text ? JSON.parse(text) : null; } catch { value = { reason: text.slice(0, 200) }; }
  if (!response.ok) throw new Refusal(response.status, value || {});
  return value;
}

export const get = (url, signal) => call("GET", url, undefined, signal);
export const post = (url, body) => call("POST", url, body);
export const put = (url, body, headers) => call("PUT", url, body, undefined, headers);
// Refused with 412 where there is one already: nobody replaces by a slip what somebody else made.
export const create = (url, body) => put(url, body, { "if-none-match": "*" });
export const remove = (url, headers) => call("DELETE", url, undefined, undefined, headers);
// A header's value is Latin-1 without controls: other characters become `?`.
export const headerText = (text) => text.replace(/[^\u0020-\u007e\u00a1-\u00ff]/g, "?");

// A file that the browser saves.
export function save(fileName, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  Object.assign(document.createElement("a"), { href: url, download: fileName }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Server-sent events by fetch, which can send credentials of its own. tell(kind, data); returns what ends it.
export function listen(topics, tell) {
  const stop = new AbortController();
  let last = "";
  (async () => {
    let pause = 500;
    while (!stop.signal.aborted) {
      try {
        const headers = { ...CONSOLE };
        if (last) headers["last-event-id"] = last;
        const response = await fetch(`/api/v1/events?topics=${topics.join(",")}`, { headers, credentials: "same-origin", cache: "no-store", signal: stop.signal });
        if (response.status === 401) lost();
        if (!response.ok) throw new Refusal(response.status, await response.json());
        tell("open", null);
        pause = 500;
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let text = "";
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          text += value;
          const blocks = text.split("\n\n");
          text = blocks.pop();
          for (const block of blocks) {
            let kind = "", data = "";
            for (const line of block.split("\n")) {
              if (line.startsWith("event: ")) kind = line.slice(7);
              else if (line.startsWith("data: ")) data = line.slice(6);
              else if (line.startsWith("id: ")) last = line.slice(4);
            }
            if (kind) tell(kind, JSON.parse(data));
          }
        }
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof Refusal && (error.status === 401 || error.status === 403)) { tell("refused", error); return; }
      }
      tell("closed", null);
      await new Promise((then) => setTimeout(then, pause));
      pause = Math.min(pause * 2, 10000);
    }
  })();
  return () => stop.abort();
}
