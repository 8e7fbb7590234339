// What a resource says about itself, in the words of the page.
import type { Schemas } from "./api";

export type Generation = Schemas["Generation"];
export type Attempt = Schemas["Attempt"];
export type Condition = Schemas["Condition"];

export interface Status {
  activeGeneration?: number | null;
  nextGeneration?: number | null;
  generations?: Generation[];
  history?: Attempt[];
  conditions?: Condition[];
  rollout?: Schemas["Rollout"] | null;
  [field: string]: unknown;
}

export interface Resource {
  apiVersion: string;
  kind: string;
  metadata: { name: string; namespace: string; uid: string; creationTimestamp?: string; deletionTimestamp?: string };
  spec: Record<string, unknown>;
  status?: Status;
}

export interface KindList {
  kind: string;
  plural: string;
  items: Resource[];
}

export const STAGES = ["Creation", "Initialization", "ReadOnly", "ReadWrite"] as const;

export type Tone = "good" | "busy" | "bad" | "off";

export interface Health {
  tone: Tone;
  word: string;
  why: string;
}

export function condition(resource: Resource, type: string): Condition | undefined {
  return resource.status?.conditions?.find((each) => each.type === type);
}

/** A Dataflow is a script, whose ComputeCluster has the pods; a Backup is made once. */
export const hasPods = ({ kind }: { kind: string }) => kind !== "Dataflow" && kind !== "Backup";

const PHASES: Record<string, Tone> = { Complete: "good", Failed: "bad" };

export function health(resource: Resource): Health {
  const ready = condition(resource, "Ready");
  const state = resource.status?.rollout?.state ?? "Idle";
  const why = ready?.message || ready?.reason || "";
  if (resource.metadata.deletionTimestamp) return { tone: "off", word: "Deleting", why };
  if (resource.kind === "Backup") {
    const phase = String(resource.status?.["phase"] ?? "Pending");
    return { tone: PHASES[phase] ?? "busy", word: phase, why: condition(resource, "Complete")?.message ?? "" };
  }
  if (resource.spec["suspend"] === true) return { tone: "off", word: "Suspended", why };
  const back = state === "Baking" && ready?.status === "True" ? condition(resource, "CanSwitchBack") : undefined;
  if (back) return { tone: "good", word: "Baking", why: back.message ?? "" };
  if (state !== "Idle") return { tone: "busy", word: STATE_WORDS[state] ?? state, why };
  const behind = hasPods(resource) ? undefined : condition(resource, "UpToDate");
  if (ready?.status === "True" && behind?.status === "False") return { tone: "busy", word: "Catching up", why: behind.message ?? "" };
  if (ready?.status === "True") return { tone: "good", word: "Ready", why };
  const served = resource.status?.activeGeneration || !hasPods(resource);
  if (ready?.status === "False" && served) return { tone: "bad", word: "Not ready", why };
  return { tone: "busy", word: "Starting", why };
}

const STATE_WORDS: Record<string, string> = {
  CreatingNext: "Starting pods",
  Initializing: "Building state",
  CatchingUp: "Catching up",
  CaughtUp: "Caught up",
  Promoting: "Handing over",
  Baking: "Baking",
  Retiring: "Retiring the old",
  Aborting: "Giving up",
};

export interface Wait {
  reason: string;
  message: string;
  since: string;
  pods: string[];
}

/** What the resource waits for: the blockers of its rollout, those that say the same together; else what holds it up. */
export function waitsOf(resource: Resource): Wait[] {
  const found = new Map<string, Wait>();
  for (const { reason, message = "", since, pod } of resource.status?.rollout?.blockers ?? []) {
    const wait = found.get(`${reason} ${message}`) ?? { reason, message, since, pods: [] };
    if (pod) wait.pods.push(pod);
    if (since < wait.since) wait.since = since;
    found.set(`${reason} ${message}`, wait);
  }
  for (const type of found.size ? [] : ["Stalled", "Ready", "UpToDate", "Complete"]) {
    const held = condition(resource, type);
    if (!held || held.status !== (type === "Stalled" ? "True" : "False") || !held.message) continue;
    const { reason, message, lastTransitionTime: since } = held;
    if (reason !== "Bootstrapping") found.set(`${reason} ${message}`, { reason, message, since, pods: [] });
  }
  return [...found.values()];
}

/** Of the last promotion of which it is known; attempts are stored newest first. */
export function lastGapMs(status: Status | undefined): number | null {
  return status?.history?.find((each) => each.writeGapMs != null)?.writeGapMs ?? null;
}

export function pathOf(plural: string, resource: Resource): string {
  return `/namespaces/${encodeURIComponent(resource.metadata.namespace)}/${plural}/${encodeURIComponent(resource.metadata.name)}`;
}

/** Where this page shows it. */
export const addressOf = (plural: string, { metadata }: Resource) => `${plural}/${metadata.namespace}/${metadata.name}`;

const NOW_STEPS = 2; // of a line: the newest step may not be read yet, and what is older is the past

/** What a line is at now; undefined where nobody tells, for instance because its pods have ended. */
export const newest = (line: Schemas["SeriesLine"]) => line.values.slice(-NOW_STEPS).findLast((value) => value !== null);

export function ago(text: string | null | undefined, now: number): string {
  if (!text) return "";
  return `${span((now - Date.parse(text)) / 1000)} ago`;
}

/** So many seconds, in the largest unit that there is one of. */
export function span(exact: number): string {
  const seconds = Math.max(0, Math.round(exact));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

/** How long it has been since then. */
export const lasting = (text: string, now: number) => ago(text, now).replace(/ ago$/, "");

/** How long it was from one time to another. */
export function between(from: string | null | undefined, to: string): string {
  if (!from) return "–";
  const seconds = Math.max(0, (Date.parse(to) - Date.parse(from)) / 1000);
  return seconds < 60 ? `${seconds.toFixed(0)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

export function duration(ns: number): string {
  if (ns < 1e6) return `${(ns / 1e3).toFixed(0)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(2)} s`;
}

export interface Action {
  name: string;
  path: string;
  label: string;
  effect: (resource: Resource) => string;
  danger?: boolean;
}

const next = (resource: Resource) => {
  const number = resource.status?.nextGeneration ?? resource.status?.rollout?.generation;
  return number ? `generation ${number}` : "the attempt";
};
const active = (resource: Resource) =>
  resource.status?.activeGeneration ? `generation ${resource.status.activeGeneration}` : "the active generation";

const ACTIONS: Record<string, Action> = {
  restart: {
    name: "restart",
    path: "/rollout/restart",
    label: "Restart",
    effect: (r) => `A new generation starts beside ${active(r)}, catches up read-only and takes over. Clients keep writing.`,
  },
  promote: {
    name: "promote",
    path: "/rollout/promote",
    label: "Promote",
    effect: (r) => `You approve ${next(r)}. As soon as it has caught up it takes over the right to write from ${active(r)}.`,
  },
  pause: {
    name: "pause",
    path: "/rollout/pause",
    label: "Pause",
    effect: (r) => `No new attempt starts and no attempt is promoted. ${cap(active(r))} goes on serving.`,
  },
  resume: {
    name: "resume",
    path: "/rollout/resume",
    label: "Resume",
    effect: (r) => `The rollout of ${next(r)} goes on, and may be promoted.`,
  },
  abort: {
    name: "abort",
    path: "/rollout/abort",
    label: "Abort",
    danger: true,
    effect: (r) => `The pods of ${next(r)} stop and are deleted. ${cap(active(r))} is untouched and goes on serving.`,
  },
  retry: {
    name: "retry",
    path: "/rollout/retry",
    label: "Retry",
    effect: () => "The failed attempt starts again under a new number.",
  },
  undo: {
    name: "undo",
    path: "/rollout/undo",
    label: "Undo",
    danger: true,
    effect: () => "", // its dialog asks the control plane
  },
  image: {
    name: "image",
    path: "/rollout/image",
    label: "Image",
    effect: () => "", // as of undo
  },
  suspend: {
    name: "suspend",
    path: "/suspend",
    label: "Suspend",
    danger: true,
    effect: () => "All pods stop and nobody can read or write. The volumes stay.",
  },
  unsuspend: {
    name: "unsuspend",
    path: "/resume",
    label: "Start again",
    effect: () => "The pods start again on their volumes.",
  },
};

const cap = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

/** The actions that make sense for the state in which the resource is. */
export function actionsOf(resource: Resource): Action[] {
  const pick = (...names: string[]) => names.map((name) => ACTIONS[name]).filter((each) => each !== undefined);
  if (resource.metadata.deletionTimestamp || !hasPods(resource)) return [];
  if (resource.spec["suspend"] === true) return pick("unsuspend");
  const paused = condition(resource, "Paused")?.status === "True";
  const state = resource.status?.rollout?.state ?? "Idle";
  const running = state !== "Idle" && state !== "Baking";
  if (state === "Promoting" || state === "Retiring") return pick(paused ? "resume" : "pause"); // it can only go on
  const failed = resource.status?.["failed"] != null;
  const number = resource.status?.activeGeneration ?? 0;
  return [
    ...(running ? pick("promote", "abort") : failed ? pick("retry", "restart") : pick("restart")),
    ...pick(paused ? "resume" : "pause"),
    ...(running || number < (failed ? 1 : 2) ? [] : pick("undo")),
    ...(running ? [] : pick("image")),
    ...(running ? [] : pick("suspend")),
  ];
}
