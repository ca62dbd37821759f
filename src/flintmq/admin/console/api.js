// Calls of the broker. Credentials live in this module's memory alone: not in cookies, not in storage; a reload asks again.
let authorization = "";
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
  authorization = "Basic " + btoa(String.fromCharCode(...bytes));
}

export function logout() { authorization = ""; }
export function onLost(then) { lost = then; }
export const name = (text) => encodeURIComponent(text);
// `.` and `..` are steps of a path to a browser, percent-encoded, too: the broker takes an octet 0xFF in front, which no name has.
const segment = (text) => (text === "." || text === ".." ? "%FF" + text : name(text));
export const path = (strings, ...names) => strings.reduce((all, text, at) => all + segment(names[at - 1]) + text);

async function send(method, url, body, signal) {
  const headers = { authorization, "x-flintmq-request": "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  // `omit`: no cookie, and no login window of the browser's own
  const response = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "omit", cache: "no-store", signal });
  if (response.status === 401 && response.headers.get("www-authenticate")) lost();
  return response;
}

export async function call(method, url, body, signal) {
  const response = await send(method, url, body, signal);
  const text = await response.text();
  let value = null;
  try { value = text ? JSON.parse(text) : null; } catch { value = { reason: text.slice(0, 200) }; }
  if (!response.ok) throw new Refusal(response.status, value || {});
  return value;
}

export const get = (url, signal) => call("GET", url, undefined, signal);
export const post = (url, body) => call("POST", url, body);
export const put = (url, body) => call("PUT", url, body);
export const remove = (url) => call("DELETE", url);

// Server-sent events by fetch, which can send credentials of its own. tell(kind, data); returns what ends it.
export function listen(topics, tell) {
  const stop = new AbortController();
  let last = "";
  (async () => {
    let pause = 500;
    while (!stop.signal.aborted) {
      try {
        const headers = { authorization };
        if (last) headers["last-event-id"] = last;
        const response = await fetch(`/api/v1/events?topics=${topics.join(",")}`, { headers, credentials: "omit", cache: "no-store", signal: stop.signal });
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

// What the same call is on a command line. Every text is quoted for a shell.
// Control characters of a name would be keys that somebody presses: they are written as escapes.
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/g;
const escaped = (one) => (one < "\u0080" ? "\\x" : "\\u00") + one.charCodeAt(0).toString(16).padStart(2, "0");
export function quoted(text) {
  const plain = String(text);
  if (plain.search(CONTROL) < 0) return "'" + plain.replaceAll("'", "'\\''") + "'";
  return "$'" + plain.replaceAll("\\", "\\\\").replaceAll("'", "\\'").replace(CONTROL, escaped) + "'";
}
export function curl(method, url, body) {
  const parts = ["curl", "-u", quoted(currentUser)];
  if (method !== "GET") parts.push("-X", method);
  if (body !== undefined) parts.push("-H", quoted("content-type: application/json"), "-d", quoted(JSON.stringify(body)));
  else if (method === "POST") parts.push("-H", quoted("x-flintmq-request: 1"));
  parts.push(quoted(location.origin + url));
  return parts.join(" ");
}
export const ctl = (...words) => "flintmq ctl " + words.map((word) => (/^[\w./:=-]+$/.test(word) ? word : quoted(word))).join(" ");
let currentUser = "guest";
export function setUser(user) { currentUser = user; }
