// Calls of the REST API, and its event streams. The token lives in this tab alone.
import type { components } from "./schema";

export type Schemas = components["schemas"];
export type Problem = Partial<Schemas["ProblemDocument"]>;

const TOKEN = "pavane-token";
const NAMESPACE = "pavane-namespace";
const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 8000;
const STREAM_SILENT_MS = 5000; // without a byte, after which a stream is dead: the control plane says something every 2 s
const ANSWER_MS_MIN = 1500; // for the first byte: the browser may have taken a connection that is dead, too
const ANSWER_GROWTH = 1.5;
const ANSWER_MS_MAX = 24000; // more from one try to the next: a busy control plane must get to answer

export class ApiError extends Error {
  constructor(
    /** Of HTTP; 0: there was no answer. */
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.detail || problem.title || `The control plane answered ${status}.`);
  }
}

/** Whether asking again cannot help. */
export const isFinal = (error: unknown) => error instanceof ApiError && error.status >= 400 && error.status < 500;

export function takeToken(): string | null {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(TOKEN, given);
    history.replaceState(null, "", "/"); // a link that is shared later must not carry the token
  }
  return sessionStorage.getItem(TOKEN);
}

export function setToken(token: string | null): void {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

/** The namespace that this tab shows; "" is all of them. */
export const keptNamespace = () => sessionStorage.getItem(NAMESPACE) ?? "";

export const keepNamespace = (namespace: string) => sessionStorage.setItem(NAMESPACE, namespace);

/** What names a namespace in a query; "" names none. */
export const inNamespace = (namespace: string) => (namespace ? { namespace } : undefined);

async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set("Authorization", `Bearer ${sessionStorage.getItem(TOKEN) ?? ""}`);
  if (!init.method) headers.set("traceparent", unsampled()); // this page reads all the time; traces are for what changes
  const response = await fetch(`/api/v1${path}`, { ...init, headers }).catch((error: unknown) => {
    if (init.signal?.aborted) throw error;
    throw new ApiError(0, { detail: "The control plane does not answer." });
  });
  if (!response.ok) {
    const problem = (await response.json().catch(() => ({}))) as Problem;
    throw new ApiError(response.status, problem);
  }
  return response;
}

function unsampled(): string {
  const hex = Array.from(crypto.getRandomValues(new Uint8Array(24)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return `00-${hex.slice(0, 32)}-${hex.slice(32)}-00`;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await (await send(path, { signal })).json()) as T;
}

export async function post<T>(path: string, body?: unknown): Promise<T> {
  const init = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  return (await (await send(path, { method: "POST", ...init })).json()) as T;
}

export async function remove(path: string): Promise<void> {
  await send(path, { method: "DELETE" });
}

/** Send a JSON body. */
export async function ask<T>(method: string, path: string, body: unknown, headers: Record<string, string> = {}): Promise<T> {
  const init = { method, body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...headers } };
  return (await (await send(path, init)).json()) as T;
}

/** Append text to a partition of a log. */
export async function append<T>(path: string, data: string): Promise<T> {
  const headers = { "Content-Type": "application/octet-stream" };
  return (await (await send(path, { method: "POST", body: data, headers })).json()) as T;
}

export interface StreamEvent {
  event: string;
  id: string;
  data: string;
}

export type Connection = "connecting" | "live" | "lost" | "refused";

export interface Follower {
  /** The stream begins: anew, with everything, or behind the last event that has an id. */
  begin: (anew: boolean) => void;
  event: (event: StreamEvent) => void;
  state: (state: Connection, why?: ApiError) => void;
}

/** Read a stream of server-sent events until `signal` fires; a broken one goes on behind its last event that has an id,
 * which stands in `at`. */
export async function follow(path: string, to: Follower, at: { last: string }, signal: AbortSignal): Promise<void> {
  let wait = RETRY_MS_MIN;
  let patience = ANSWER_MS_MIN;
  const onEvent = (event: StreamEvent) => {
    if (signal.aborted) return;
    wait = RETRY_MS_MIN;
    to.event(event);
    at.last = event.id || at.last;
  };
  while (!signal.aborted) {
    let why: ApiError | undefined;
    const silence = new Silence(signal, patience);
    patience = Math.min(patience * ANSWER_GROWTH, ANSWER_MS_MAX);
    try {
      const resumed: Record<string, string> = at.last ? { "Last-Event-ID": at.last } : {};
      const response = await send(path, { signal: silence.signal, headers: { Accept: "text/event-stream", ...resumed } });
      silence.broken();
      patience = ANSWER_MS_MIN;
      to.begin(!at.last);
      to.state("live");
      if (response.body) await readEvents(response.body, onEvent, () => silence.broken());
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
        to.state("refused", error);
        return;
      }
      why = error instanceof ApiError ? error : undefined;
    } finally {
      silence.end();
    }
    if (signal.aborted) return;
    to.state("lost", why);
    if (silence.noticed) continue; // that was wait enough
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, RETRY_MS_MAX);
  }
}

/** Aborts a request when nothing came for `firstMs`, later for STREAM_SILENT_MS, or `outer` does: a browser waits for ever. */
class Silence {
  private readonly inner = new AbortController();
  private readonly stop = () => this.inner.abort();
  private readonly notice = () => {
    this.noticed = true;
    this.stop();
  };
  noticed = false;
  private timer: ReturnType<typeof setTimeout>;

  constructor(
    private readonly outer: AbortSignal,
    firstMs: number,
  ) {
    this.timer = setTimeout(this.notice, firstMs);
    outer.addEventListener("abort", this.stop);
    if (outer.aborted) this.stop();
  }

  get signal(): AbortSignal {
    return this.inner.signal;
  }

  /** Something came. */
  broken(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(this.notice, STREAM_SILENT_MS);
  }

  end(): void {
    clearTimeout(this.timer);
    this.outer.removeEventListener("abort", this.stop);
  }
}

async function readEvents(
  body: ReadableStream<Uint8Array>,
  onEvent: (event: StreamEvent) => void,
  onBytes: () => void,
): Promise<void> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    onBytes();
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const event = parseEvent(block);
      if (event) onEvent(event);
    }
  }
}

function parseEvent(block: string): StreamEvent | null {
  const event: StreamEvent = { event: "message", id: "", data: "" };
  const lines: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    const [field, ...more] = line.split(":");
    const value = more.join(":").replace(/^ /, "");
    if (field === "event") event.event = value;
    else if (field === "id") event.id = value;
    else if (field === "data") lines.push(value);
  }
  if (!lines.length) return null; // a comment: a sign of life
  event.data = lines.join("\n");
  return event;
}
