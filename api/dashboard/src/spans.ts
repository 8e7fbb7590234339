// What the spans of a trace say about each other: which one caused which, and who calls whom.
import type { Schemas } from "./api";

export type Span = Schemas["Span"];

export interface Line {
  span: Span;
  depth: number;
}

/** The span that caused each: its parent, what it links to, or who sent what both link to. */
export function causesOf(spans: Span[]): Map<Span, Span> {
  const byId = new Map(spans.map((each) => [each.span_id, each]));
  const senders = new Map<string, Span>();
  for (const span of byStart(spans))
    if (span.kind === "CLIENT" || span.kind === "PRODUCER")
      for (const { span_id } of span.links ?? []) if (!senders.has(span_id)) senders.set(span_id, span);
  const causes = new Map<Span, Span>();
  for (const span of spans) {
    const linked = (span.links ?? []).map((each) => each.span_id);
    const known = [span.parent_span_id ?? "", ...linked].map((each) => byId.get(each));
    const cause = [...known, ...linked.map((each) => senders.get(each))].find((each) => each && each !== span);
    if (cause) causes.set(span, cause);
  }
  return causes;
}

const byStart = (spans: Span[]) => [...spans].sort((a, b) => a.start_ns - b.start_ns);

/** Spans in the order of the tree: each after its cause, siblings by time. */
export function lines(spans: Span[], causes: Map<Span, Span>): Line[] {
  const children = new Map<Span | undefined, Span[]>();
  for (const span of byStart(spans)) {
    const siblings = children.get(causes.get(span));
    if (siblings) siblings.push(span);
    else children.set(causes.get(span), [span]);
  }
  const found: Line[] = [];
  const seen = new Set<Span>();
  const open: Line[] = (children.get(undefined) ?? []).reverse().map((span) => ({ span, depth: 0 }));
  while (open.length > 0) {
    const line = open.pop() as Line;
    if (seen.has(line.span)) continue;
    seen.add(line.span);
    found.push(line);
    const inner = children.get(line.span) ?? [];
    for (const span of [...inner].reverse()) open.push({ span, depth: line.depth + 1 });
  }
  const circular = spans.filter((each) => !seen.has(each)); // spans that link to each other
  return [...found, ...circular.map((span) => ({ span, depth: 0 }))];
}

export interface Program {
  name: string;
  /** Processes of it that took part. */
  instances: number;
  spans: number;
  layer: number;
  place: number;
}

export interface Calls {
  from: string;
  to: string;
  count: number;
  failed: number;
}

export interface Graph {
  programs: Program[];
  calls: Calls[];
}

/** Programs in layers, each behind those that call it; calls between processes of one program lead back to itself. */
export function graphOf(spans: Span[], causes: Map<Span, Span>): Graph {
  const calls = new Map<string, Calls>();
  for (const [span, cause] of causes) {
    if (span.service === cause.service && span.instance === cause.instance) continue;
    const key = JSON.stringify([cause.service, span.service]);
    const edge = calls.get(key) ?? { from: cause.service, to: span.service, count: 0, failed: 0 };
    edge.count += 1;
    if (span.error || cause.error) edge.failed += 1;
    calls.set(key, edge);
  }
  const names = [...new Set(byStart(spans).map((each) => each.service))];
  const edges = [...calls.values()];
  const layers = layersOf(names, edges);
  const taken: number[] = [];
  const programs = names.map((name) => {
    const own = spans.filter((each) => each.service === name);
    const layer = layers.get(name) ?? 0;
    const place = taken[layer] ?? 0;
    taken[layer] = place + 1;
    return { name, instances: new Set(own.map((each) => each.instance)).size, spans: own.length, layer, place };
  });
  return { programs, calls: edges };
}

/** By breadth from those whom nobody calls, or from the first one where all call each other. */
function layersOf(names: string[], edges: Calls[]): Map<string, number> {
  const called = new Set(edges.filter((each) => each.from !== each.to).map((each) => each.to));
  const layers = new Map<string, number>();
  const queue = names.filter((each) => !called.has(each));
  for (const root of queue) layers.set(root, 0);
  for (const name of [...queue, ...names]) {
    if (!layers.has(name)) layers.set(name, 0);
    const open = [name];
    for (let at = open.shift(); at !== undefined; at = open.shift())
      for (const { from, to } of edges)
        if (from === at && !layers.has(to)) {
          layers.set(to, (layers.get(at) ?? 0) + 1);
          open.push(to);
        }
  }
  return layers;
}
